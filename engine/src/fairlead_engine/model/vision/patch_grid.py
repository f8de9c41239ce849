"""Where an image's patches are: their order in the tower, their rows and columns, and who sees whom. Pure.

Patches come merged, `merge_size` squared of them after one another, in the reading order of what they become. The tower
takes them by windows, so that those of a window lie side by side.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fairlead_engine.model.vision.vision_config import VisionConfig

Numbers = npt.NDArray[np.int64]


class PatchGrid(NamedTuple):
    """An image's patches in the order of the tower. All arrays are int64."""

    order: Numbers
    """[patches]: which of the image's own order each is."""
    places: Numbers
    """[2, patches]: row and column of each in the image."""
    window_lengths: Numbers
    """Patches of each window."""
    back: Numbers
    """[merged patches]: where in the tower's order each of the image's own order is."""


def patch_grid(config: VisionConfig, rows: int, columns: int) -> PatchGrid:
    """Of an image of so many rows and columns of merged patches."""
    merge, side = config.merge_size, config.window_patches
    row, column = np.divmod(np.arange(rows * columns), columns)
    window = row // side * -(-columns // side) + column // side
    by_window = np.argsort(window, kind="stable")
    within = np.arange(merge**2)
    order = (by_window[:, None] * merge**2 + within).ravel()
    places = np.stack(
        [
            (row[by_window][:, None] * merge + within // merge).ravel(),
            (column[by_window][:, None] * merge + within % merge).ravel(),
        ]
    )
    _, counts = np.unique(window, return_counts=True)
    return PatchGrid(order, places, counts * merge**2, np.argsort(by_window))
