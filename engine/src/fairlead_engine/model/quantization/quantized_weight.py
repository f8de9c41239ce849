"""Weights as integers or 8-bit floats with scales: what every format computes with and what checkpoints store."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight [out_features, in_features]: element (i, j) is `values[i, j] * scales[i, j // group_size]`."""

    values: Tensor
    """int8 or float8_e4m3fn [out_features, in_features]; 4-bit integers are the int8 from -8 to 7."""
    scales: Tensor
    """float32 [out_features, groups]; the last group may be narrower."""
    group_size: int
    """Columns that share a scale."""

    @staticmethod
    def stacked(parts: Sequence["QuantizedWeight"]) -> "QuantizedWeight":
        """Several below one another; they have the same columns and groups."""
        if len(parts) == 1:
            return parts[0]
        values = torch.cat([part.values.view(torch.int8) for part in parts]).view(parts[0].values.dtype)
        return QuantizedWeight(values, torch.cat([part.scales for part in parts]), parts[0].group_size)

    def columns(self, first: int, end: int) -> "QuantizedWeight":
        """Those of the weight as a weight of their own. Raises ValueError where that would divide a group."""
        if self.has_scale_per_row:
            return QuantizedWeight(self.values[:, first:end].contiguous(), self.scales, end - first)
        size, num_columns = self.group_size, self.values.shape[1]
        if first % size or (end % size and end < num_columns):
            raise ValueError(f"{first} to {end} of {num_columns}, in groups of {size}")
        scales = self.scales[:, first // size : -(-end // size)]
        return QuantizedWeight(self.values[:, first:end].contiguous(), scales.contiguous(), size)

    @property
    def has_scale_per_row(self) -> bool:
        """Whether all columns share a scale."""
        return self.scales.shape[1] == 1

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight that is meant, [out_features, in_features]; products and sums of it define every format."""
        columns = self.values.shape[1]
        spread = self.scales.to(dtype).repeat_interleave(self.group_size, dim=1)[:, :columns]
        return self.values.to(dtype) * spread


def quantize_weight(
    weight: Tensor, dtype: torch.dtype, *, largest: float, low: float, high: float, group_size: int | None = None
) -> QuantizedWeight:
    """A weight [out_features, in_features] of any floating dtype, to the nearest values of `dtype`.

    A group's element of largest magnitude is scaled to `largest`, and what then lies beyond `low` and `high` is put
    there. Where a group is all zeros its scale is 1. `group_size` None = a row is one group; else it divides
    in_features.
    """
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
