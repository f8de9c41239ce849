"""What tokens turn by in a prompt with images: places in time, row and column. Pure; knows no tensors.

Text goes on by one in all three. The tokens of an image share one place in time, and have their own rows and columns
from there on; the text behind it goes on behind the largest of them. Source: multimodal rope (arXiv 2409.12191).
"""

from collections.abc import Sequence

import numpy as np

from fairlead_engine.types import PromptImage
from fairlead_engine.types.batch import Numbers


def shift_behind(images: Sequence[PromptImage]) -> int:
    """What is added to a token's position behind all images to have its place."""
    return sum(max(image.rows, image.columns) - image.num_tokens for image in images)


def places(images: Sequence[PromptImage], start: int, end: int) -> Numbers:
    """int64 [3, end - start]: of the tokens from `start` to before `end` of a prompt with these images, in order."""
    found = np.tile(np.arange(start, end), (3, 1))
    shift = 0
    for image in images:
        first, last = max(image.start, start), max(image.start, min(image.end, end))
        if first < last:
            row, column = np.divmod(np.arange(first, last) - image.start, image.columns)
            at = image.start + shift
            found[:, first - start : last - start] = at + np.stack((np.zeros_like(row), row, column))
        step = shift_behind([image])
        found[:, max(0, image.end - start) :] += step
        shift += step
    return found
