"""Products of rows with a weight of integers or 8-bit floats, decoded on its way to the product."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.dispatch import with_kernel
from fairlead_engine.kernels.rounded_rows import RowFormat, rounded_blocks, rounded_rows

ZERO = 8
"""0 in the unsigned integers of 4 bits."""


class CodedWeight(NamedTuple):
    """A weight [out_features, in_features]: element (i, j) is `values[i, j] * scales[g, i] + offsets[g, i]`, where g is
    j // group_size."""

    values: Tensor
    """int8 or float8_e4m3fn [out_features, in_features]; or uint8 [out_features, in_features / 2], `packed`."""
    scales: Tensor
    """float32 or a float of 16 bits [groups, out_features]; the last group may be narrower."""
    group_size: int
    """Columns that share a scale."""
    offsets: Tensor | None = None
    """Like scales; None = 0."""
    row_format: RowFormat | None = None
    """Rows are rounded to it before the product, whole or, with several groups, by group; None = not at all."""
    arrivals: Tensor | None = None
    """int32 [`MOST_ARRIVALS`]: zeros between products, which one stream computes; None = a kernel makes its own."""

    @property
    def is_cuda(self) -> bool:
        return self.values.is_cuda

    @property
    def is_packed(self) -> bool:
        return self.values.dtype is torch.uint8

    @property
    def in_features(self) -> int:
        return self.values.shape[1] * (2 if self.is_packed else 1)

    @property
    def num_bytes(self) -> int:
        return sum(part.nbytes for part in self if isinstance(part, Tensor))


def packed(values: Tensor) -> Tensor:
    """uint8 [rows, columns / 2] from int8 [rows, columns] within -8 and 7: each byte has a number of the first half of
    the columns in its lower bits, and that of the second half at the same place."""
    first, second = (values + ZERO).view(torch.uint8).chunk(2, dim=1)
    return first | (second << 4)


@with_kernel("fairlead_engine.kernels.decoded_product_kernel")
def decoded(weight: CodedWeight, rows: slice, dtype: torch.dtype) -> Tensor:
    """Some rows of the weight [rows, in_features], computed in float32."""
    values = weight.values[rows]
    if weight.is_packed:
        values = torch.cat((values & 15, values >> 4), dim=1).view(torch.int8) - ZERO
    each = values.float() * _spread(weight, weight.scales, rows)
    if weight.offsets is not None:
        each += _spread(weight, weight.offsets, rows)
    return each.to(dtype)


def _spread(weight: CodedWeight, per_group: Tensor, rows: slice) -> Tensor:
    spread = per_group[:, rows].t().float().repeat_interleave(weight.group_size, dim=1)
    return spread[:, : weight.in_features]


def rounded(x: Tensor, weight: CodedWeight) -> Tensor:
    """Rows of x after rounding."""
    if weight.row_format is None:
        return x
    if len(weight.scales) > 1:
        return rounded_blocks(x, weight.group_size, weight.row_format)
    values, scales = rounded_rows(x, weight.row_format)
    return (values.float() * scales).to(x.dtype)


@with_kernel("fairlead_engine.kernels.decoded_product_kernel")
def decoded_product(x: Tensor, weight: CodedWeight, bias: Tensor | None = None) -> Tensor:
    """x [rows, in_features] times the weight, plus the bias [out_features]: [rows, out_features]."""
    product = functional.linear(rounded(x, weight).float(), decoded(weight, slice(None), torch.float32))
    return (product if bias is None else product.add_(bias)).to(x.dtype)
