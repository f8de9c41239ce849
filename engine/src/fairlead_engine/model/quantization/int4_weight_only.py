"""4-bit integer weights, scaled by output channel and a few dozen columns; activations stay floats.

The group size of a stored checkpoint is its makers' compromise (AWQ, GPTQ: 128); weights rounded without regard to
activations have small groups, with less error.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.product_trial import is_right
from fairlead_engine.model.quantization.coded_linear import coded_linear
from fairlead_engine.model.quantization.dequantized_linear import PART_ELEMENTS, DequantizedLinear, tell_decoding
from fairlead_engine.model.quantization.quantized_weight import QuantizedLinear, QuantizedWeight, quantize_weight

_LARGEST = 7.5
"""Integers go from -8 to 7, with scales as if to 7.5: compressed-tensors' rule, which cuts a little off one side for
finer steps."""
_GROUP_SIZE = 32
_ZERO = 8
"""0 in the unsigned integers that torch packs."""
_PACKED_GROUPS = (32, 64, 128, 256)
_ROWS_TOGETHER, _FULL_ROWS = 16, 64
"""Output features are packed by 64 if divisible; they must be a multiple of 16."""
_MOST_ROWS = 200
"""Most rows for which torch's product with 4-bit integers is faster than decoding the weight: 3072 x 1024 on one thread
with AVX512 takes 0.17, 2.4, 9.9, 20 and 39 ms for 1, 32, 128, 256 and 512 rows, and decoded 12, 15 and 24 for the last
three, give or take a fifth."""


class ReorderedLinear:
    """A product with a weight whose columns have another order: reorders each input row, at the cost of a copy."""

    copies_weight = True

    def __init__(self, linear: QuantizedLinear, order: Tensor) -> None:
        """`order` int64 [in_features]: input of each of the weight's columns."""
        self._linear = linear
        self._order = order
        self.weight_bytes = linear.weight_bytes + order.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return self._linear(x.index_select(1, self._order))


@dataclass(frozen=True, slots=True)
class Int4WeightOnly:
    """A quarter of bfloat16's memory, and more than twice its speed for one sequence at a time."""

    name = "int4-weight-only"
    row_format = None

    def quantize(self, weight: Tensor) -> QuantizedWeight:
        if weight.shape[1] % _GROUP_SIZE:
            raise ModelLoadError(
                ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
                f"quantization int4-weight-only scales {_GROUP_SIZE} input features at a time, which does not divide a "
                f"layer's {weight.shape[1]}; use int8-weight-only",
            )
        return quantize_weight(weight, torch.int8, largest=_LARGEST, low=-8, high=7, group_size=_GROUP_SIZE)

    def linear(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> QuantizedLinear:
        if weight.groups is not None and (sorted_by_group := weight.in_order()) is not None:
            in_order, order = sorted_by_group
            return ReorderedLinear(self.linear(in_order, bias, dtype), order)
        rows, columns = weight.values.shape
        is_whole = weight.groups is None and columns % weight.group_size == 0
        fits = is_whole and weight.group_size in _PACKED_GROUPS and rows % _ROWS_TOGETHER == 0
        if fits and weight.values.device.type == "cpu" and can_pack_int4(dtype):
            return PackedInt4Linear(weight, bias, dtype)
        coded = coded_linear(weight, bias, dtype, None, num_bits=4)
        if coded is not None:
            return coded
        size = "inputs in any order" if weight.groups is not None else f"{weight.group_size} inputs"
        tell_decoding(self.name, weight.values.device.type, f"{dtype} with 4-bit integers in groups of {size}")
        return DequantizedLinear(weight, bias, dtype)


class PackedInt4Linear:
    """Through torch's product with 4-bit integers for few rows, on a CPU; for many the weight is decoded first."""

    copies_weight = True

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._packed = torch._convert_weight_to_int4pack_for_cpu((weight.values + _ZERO).int(), 1)
        scales = weight.scales.t().to(dtype)
        zeros = torch.zeros_like(scales) if weight.offsets is None else weight.offsets.t().to(dtype)
        self._scales_and_zeros = torch.stack((scales, zeros), dim=-1)
        self._has_zeros = weight.offsets is not None
        self._group_size = weight.group_size
        self._bias = bias
        self._can_unpack = len(weight.values) % _FULL_ROWS == 0 and can_unpack()
        self.weight_bytes = self._packed.nbytes + self._scales_and_zeros.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) > _MOST_ROWS and self._can_unpack:
            product = self._unpacked_product(x)
        elif len(x):
            product = torch._weight_int4pack_mm_for_cpu(x, self._packed, self._group_size, self._scales_and_zeros)
        else:
            product = x.new_empty(0, self._scales_and_zeros.shape[1])
        return product if self._bias is None else product.add_(self._bias)

    def _unpacked_product(self, x: Tensor) -> Tensor:
        columns, size = x.shape[1], self._group_size
        scales, zeros = (
            self._scales_and_zeros[:, :, index].reshape(columns // size, -1, 1, _FULL_ROWS).transpose(0, 1)
            for index in (0, 1)
        )
        num_blocks = max(1, PART_ELEMENTS // (columns * _FULL_ROWS))
        packed = torch.split(self._packed, num_blocks * _FULL_ROWS)
        products = []
        each = (torch.split(scales, num_blocks), torch.split(zeros, num_blocks))
        for part, factors, offsets in zip(packed, *each, strict=True):
            decoded = unpacked(part, columns).to(x.dtype).view(-1, columns // size, size, _FULL_ROWS).mul_(factors)
            if self._has_zeros:
                decoded.add_(offsets)
            products += [x @ block for block in decoded.flatten(1, 2)]  # as one batched product it takes twice as long
        return torch.cat(products, dim=-1)


def unpacked(packed: Tensor, columns: int) -> Tensor:
    """int8 [out_features / 64, columns, 64] from torch's packing with AVX512: a block of 64 rows has 32 bytes for each
    column, whose lower halves are the first 32 rows."""
    halves = packed.view(-1, columns, _FULL_ROWS // 2)
    return torch.cat((halves & 15, halves >> 4), dim=-1).view(torch.int8).sub_(_ZERO)


@cache
def can_unpack() -> bool:
    """Whether `unpacked` reads the present layout, which depends on the CPU and torch's version."""
    values = (torch.arange(128 * 32) * 7 % 16).view(128, 32)
    found = unpacked(torch._convert_weight_to_int4pack_for_cpu(values.int(), 1), 32)
    return bool(torch.equal(found.transpose(1, 2).flatten(0, 1), values - _ZERO))


@cache
def can_pack_int4(dtype: torch.dtype) -> bool:
    """Whether torch has the product here and computes a small example correctly; it is not torch's public interface."""
    values = (torch.arange(64 * 64) % 15 - 8).view(64, 64).to(torch.int8)
    weight = QuantizedWeight(values, torch.ones(64, 2), 32, torch.full((64, 2), 2.0))
    x = (torch.arange(2 * 64) % 3 - 1).view(2, 64).to(dtype)
    return is_right(
        lambda: PackedInt4Linear(weight, None, dtype)(x),
        functional.linear(x, (values + 2).to(dtype)),
        otherwise=f"torch cannot multiply {dtype} with 4-bit integers here, decoding weights",
    )
