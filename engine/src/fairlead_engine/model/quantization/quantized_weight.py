"""Weights as integers or 8-bit floats with scales: held, packed, rounded and multiplied.

A `WeightFormat` computes with a `QuantizedWeight`; checkpoints pack several integers of a few bits into an int32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from fairlead_engine.kernels.rounded_rows import RowFormat
from fairlead_engine.model.linear import Linear


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight [out_features, in_features]: element (i, j) is `values[i, j] * scales[i, g] + offsets[i, g]`, where g is
    the column's group."""

    values: Tensor
    """int8 or float8_e4m3fn [out_features, in_features]; 4-bit integers are the int8 from -8 to 7."""
    scales: Tensor
    """float32 [out_features, groups]; the last group may be narrower."""
    group_size: int
    """Columns that share a scale."""
    offsets: Tensor | None = None
    """float32 [out_features, groups], from zero points; None = 0."""
    groups: Tensor | None = None
    """int64 [in_features]: the group of each column; None = j // group_size."""

    @staticmethod
    def stacked(parts: Sequence["QuantizedWeight"]) -> "QuantizedWeight":
        """Several weights below one another, with the same columns and groups."""
        first = parts[0]
        if len(parts) == 1:
            return first
        values = torch.cat([part.values.view(torch.int8) for part in parts]).view(first.values.dtype)
        offsets = None
        if any(part.offsets is not None for part in parts):
            each = [torch.zeros_like(part.scales) if part.offsets is None else part.offsets for part in parts]
            offsets = torch.cat(each)
        scales = torch.cat([part.scales for part in parts])
        return QuantizedWeight(values, scales, first.group_size, offsets, first.groups)

    def can_be_below(self, other: "QuantizedWeight") -> bool:
        """Whether two weights of one format have the same groups and can be stacked."""
        if self.has_scale_per_row or other.has_scale_per_row:
            return self.has_scale_per_row and other.has_scale_per_row
        if self.groups is None or other.groups is None:
            return self.groups is other.groups and self.group_size == other.group_size
        return self.group_size == other.group_size and torch.equal(self.groups, other.groups)

    def columns(self, first: int, end: int) -> "QuantizedWeight":
        """Some columns as a weight of their own. Raises ValueError where that would divide a group."""
        values = self.values[:, first:end].contiguous()
        if self.has_scale_per_row:
            return QuantizedWeight(values, self.scales, end - first, self.offsets)
        if self.groups is not None:
            return QuantizedWeight(values, self.scales, self.group_size, self.offsets, self.groups[first:end])
        size, num_columns = self.group_size, self.values.shape[1]
        if first % size or (end % size and end < num_columns):
            raise ValueError(f"{first} to {end} of {num_columns}, in groups of {size}")
        kept = slice(first // size, -(-end // size))
        offsets = None if self.offsets is None else self.offsets[:, kept].contiguous()
        return QuantizedWeight(values, self.scales[:, kept].contiguous(), size, offsets)

    def in_order(self) -> "tuple[QuantizedWeight, Tensor] | None":
        """The weight with columns sorted by group, and their old indices, int64 [in_features]; None for unequal
        groups."""
        assert self.groups is not None
        order = self.groups.argsort(stable=True)
        if not torch.equal(self.groups[order], torch.arange(len(order), device=order.device) // self.group_size):
            return None
        values = self.values.index_select(1, order)
        return QuantizedWeight(values, self.scales, self.group_size, self.offsets), order

    @property
    def has_scale_per_row(self) -> bool:
        """Whether all columns share a scale."""
        return self.scales.shape[1] == 1

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight's values, [out_features, in_features]; products and sums of them define every format."""
        return self.decoded(slice(None), dtype)

    def decoded(self, rows: slice, dtype: torch.dtype) -> Tensor:
        """Some rows of it, computed in `dtype`."""
        decoded = self.values[rows].to(dtype) * self.spread(self.scales[rows].to(dtype))
        return decoded if self.offsets is None else decoded.add_(self.spread(self.offsets[rows].to(dtype)))

    def spread(self, per_group: Tensor) -> Tensor:
        """[rows, groups] → [rows, in_features]: each column gets its group's value."""
        if self.groups is not None:
            return per_group.index_select(1, self.groups)
        return per_group.repeat_interleave(self.group_size, dim=1)[:, : self.values.shape[1]]


def quantize_weight(
    weight: Tensor, dtype: torch.dtype, *, largest: float, low: float, high: float, group_size: int | None = None
) -> QuantizedWeight:
    """A weight [out_features, in_features] of any floating dtype, to the nearest values of `dtype`. A group's largest
    magnitude is scaled to `largest`, and values beyond `low` and `high` are clamped. The scale of a group of zeros is
    1. `group_size` None = a row is one group; else it divides in_features."""
    rows, columns = weight.shape
    size = group_size or columns
    groups = weight.float().view(rows, columns // size, size)
    scales = groups.abs().amax(-1).div_(largest)
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    quotients = groups / scales.unsqueeze(-1)
    if not dtype.is_floating_point:
        quotients = quotients.round_()
    values = quotients.clamp_(low, high).view(rows, columns).to(dtype)
    return QuantizedWeight(values, scales, size)


WORD_BITS = 32


def num_words(size: int, num_bits: int) -> int:
    return -(-size * num_bits // WORD_BITS)


def unpack(words: Tensor, num_bits: int, order: Sequence[int] | None = None) -> Tensor:
    """int8 [rows, 32 / num_bits x words] from int32 [rows, words], less half of their range. The first is in the lowest
    bits; with `order`, the i-th is at place `order[i]` of its word."""
    places = range(WORD_BITS // num_bits) if order is None else order
    shifts = torch.tensor([num_bits * place for place in places], dtype=torch.int32, device=words.device)
    values = (words.unsqueeze(-1) >> shifts).bitwise_and_(2**num_bits - 1).sub_(2 ** (num_bits - 1))
    return values.to(torch.int8).flatten(1)


def pack(values: Tensor, num_bits: int) -> Tensor:
    """int32 [rows, words] from signed integers [rows, size], plus half of their range: the first in the lowest bits."""
    per_word = WORD_BITS // num_bits
    unsigned = pad(values.to(torch.int64) + 2 ** (num_bits - 1), (0, -values.shape[1] % per_word))
    shifts = torch.arange(0, WORD_BITS, num_bits, device=values.device)
    joined = (unsigned.view(len(values), -1, per_word) << shifts).sum(-1)
    return torch.where(joined >= 2**31, joined - 2**32, joined).to(torch.int32)


class QuantizedLinear(Linear, Protocol):
    """A linear layer that knows its weight's memory."""

    weight_bytes: int
    """Memory of values and scales, without the bias."""


class WeightFormat(Protocol):
    """How linear layers' weights are rounded, and multiplied with. Two of a kind are equal and hash alike."""

    @property
    def name(self) -> str:
        """As the setting `quantization` spells it."""

    @property
    def row_format(self) -> RowFormat | None:
        """Rounding of rows before a product: whole, or in blocks, one per scale of a floating weight; None = none."""

    def quantize(self, weight: Tensor) -> QuantizedWeight:
        """Rounds a weight [out_features, in_features] of any floating dtype."""

    def linear(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> QuantizedLinear:
        """The fastest layer for this weight on its device, for rows in `dtype`."""
