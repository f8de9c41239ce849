"""Scales of activations, one for each row: what a row becomes depends on nothing else in the batch."""

from torch import Tensor

_LEAST = 1e-30
"""Of a scale: a row of zeros is divided by it."""


def row_scales(x: Tensor, largest: float) -> Tensor:
    """float32 [rows, 1]: dividing a row of x [rows, size] by its own makes its largest magnitude `largest`.

    A row with NaN or infinity in it has one that is neither finite, so that its products are not.
    """
    return x.abs().amax(-1, keepdim=True).float().mul_(1 / largest).clamp_min_(_LEAST)
