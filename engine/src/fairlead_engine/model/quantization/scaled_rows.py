"""Activations scaled row by row, to be rounded: what a row becomes depends on nothing else in the batch."""

import torch
from torch import Tensor

_LEAST = 1e-30
"""Of a scale: a row of zeros is divided by it."""


def scaled_rows(x: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """x [rows, size] over its scales, as a new float32 tensor, and the scales, float32 [rows, 1]. The largest magnitude
    of each row becomes `largest`.

    A row with NaN or infinity in it has a scale that is neither finite, so that its products are not. All is float32
    from the first: torch's operations on two number formats take four times as long.
    """
    rows = x.to(torch.float32, copy=True)
    scales = rows.abs().amax(-1, keepdim=True).mul_(1 / largest).clamp_min_(_LEAST)
    return rows.mul_(scales.reciprocal()), scales
