"""Activations scaled row by row and rounded: a rounded row depends on nothing else in the batch."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.dispatch import with_kernel

LEAST_SCALE = 1e-30
"""Divisor for a row of zeros."""
_E4M3_BITS = 0x87F0 - 2**16
"""Sign, and the seven other bits of a float8_e4m3fn below the four highest of a bfloat16's exponent."""
_E4M3_BIAS = 2.0 ** (127 - 7)
"""Of their exponents, bfloat16's over float8_e4m3fn's."""


class RowFormat(NamedTuple):
    """The numbers that rows are rounded to."""

    dtype: torch.dtype
    """int8 or float8_e4m3fn."""
    largest: float
    """The scaled value of each row's largest magnitude."""


INT8_ROWS = RowFormat(torch.int8, 127.0)
E4M3_ROWS = RowFormat(torch.float8_e4m3fn, 448.0)
"""Scaled to e4m3's largest number."""


@with_kernel("fairlead_engine.kernels.rounded_rows_kernel")
def rounded_rows(x: Tensor, row_format: RowFormat, least_rows: int = 0) -> tuple[Tensor, Tensor]:
    """x [rows, size] over its scales, to the nearest numbers of the format, and the scales, float32 [rows, 1].
    Undefined rows may follow, up to `least_rows` in all.

    A row with NaN or infinity has a scale that is not finite, which makes its products not finite. All is float32 from
    the first: torch's operations on two number formats take four times as long.
    """
    rows = x.to(torch.float32, copy=True)
    scales = rows.abs().amax(-1, keepdim=True).mul_(1 / row_format.largest).clamp_min_(LEAST_SCALE)
    rows.mul_(scales.reciprocal())
    if len(rows) < least_rows:
        rows = functional.pad(rows, (0, 0, 0, least_rows - len(rows)))
    if not row_format.dtype.is_floating_point:
        return rows.round_().to(row_format.dtype), scales
    # What lies outside of the format by a rounding error becomes the last number of it.
    return rows.clamp_(-row_format.largest, row_format.largest).to(row_format.dtype), scales


def rounded_blocks(x: Tensor, size: int, row_format: RowFormat) -> Tensor:
    """Blocks of `size` columns of x [rows, columns], the last perhaps narrower, rounded and decoded, in x's format."""
    columns = x.shape[1]
    blocks = functional.pad(x, (0, -columns % size)).view(-1, size)  # zeros beside them change no scale
    rows, scales = rounded_rows(blocks, row_format)
    return decode(rows, torch.float32).mul_(scales).view(len(x), columns + -columns % size)[:, :columns].to(x.dtype)


def decode(values: Tensor, dtype: torch.dtype) -> Tensor:
    """int8 or float8_e4m3fn values as a new tensor in `dtype`, without loss. torch converts an 8-bit float on a CPU in
    4 ns; here its bits are moved to a bfloat16's places instead."""
    if values.dtype is not torch.float8_e4m3fn or values.device.type != "cpu":
        return values.to(dtype)
    bits = values.view(torch.int8).to(torch.int16).bitwise_left_shift_(4).bitwise_and_(_E4M3_BITS)
    return bits.view(torch.bfloat16).mul_(_E4M3_BIAS).to(dtype)
