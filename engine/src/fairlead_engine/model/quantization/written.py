"""Weights rounded by `fairlead-engine quantize` and stored in compressed-tensors' layout.

GPTQ's compensation of errors and AWQ's scales need a layer's *input moments*, the sum of x^T x over its inputs x, and
err less for such inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairlead_engine.kernels.rounded_rows import E4M3_ROWS
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight, pack

_STRATEGY = "strategy"


@dataclass(frozen=True, slots=True)
class RoundingGrid:
    """The numbers to which scaled weights are rounded, and their storage."""

    dtype: torch.dtype
    largest: float
    """A group's largest magnitude is scaled to it."""
    low: float
    high: float
    num_bits: int
    layout: str
    rounds_activations: bool
    group_size: int | None = None
    """Inputs that share a scale; None = all."""

    def scales(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """float32 [rows, groups] for a weight [rows, in_features], representable in `dtype`."""
        groups = weight.float().view(len(weight), -1, self.group_size or weight.shape[1])
        scales = (groups.abs().amax(-1) / self.largest).to(dtype).float()
        return torch.where(scales == 0, torch.ones_like(scales), scales)

    def round(self, quotients: Tensor) -> Tensor:
        """Weights over their scales, to the nearest numbers of the grid, as floats."""
        if self.dtype.is_floating_point:
            return quotients.clamp(self.low, self.high).to(self.dtype).to(quotients.dtype)
        return quotients.round().clamp_(self.low, self.high)

    def nearest(self, weight: Tensor, scales: Tensor) -> QuantizedWeight:
        """A weight, each element rounded by itself."""
        size = self.group_size or weight.shape[1]
        values = self.round(weight.float() / scales.repeat_interleave(size, dim=1))
        return QuantizedWeight(values.to(self.dtype), scales, size)

    def stored(self, name: str, weight: QuantizedWeight, dtype: torch.dtype) -> dict[str, Tensor]:
        """The tensors of the layer `name`."""
        scales = {f"{name}.weight_scale": weight.scales.to(dtype)}
        if self.layout != "pack-quantized":
            return {f"{name}.weight": weight.values, **scales}
        shape = torch.tensor(weight.values.shape)
        return {f"{name}.weight_packed": pack(weight.values, self.num_bits), f"{name}.weight_shape": shape, **scales}

    def config(self, ignored: list[str]) -> dict[str, Any]:
        """The `quantization_config` of a checkpoint with this grid for all linear layers except `ignored`."""
        kind = "float" if self.dtype.is_floating_point else "int"
        alike = {"num_bits": self.num_bits, "type": kind, "symmetric": True}
        weights = {**alike, _STRATEGY: "channel", "group_size": None, "dynamic": False}
        if self.group_size is not None:
            weights |= {_STRATEGY: "group", "group_size": self.group_size}
        activations = {**alike, _STRATEGY: "token", "dynamic": True} if self.rounds_activations else None
        group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
        return {
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
            "format": self.layout,
            "config_groups": {"group_0": {**group, "output_activations": None}},
            "ignore": ignored,
        }


_E4M3 = E4M3_ROWS.largest
GRIDS = {
    "int8": RoundingGrid(torch.int8, 127.0, -127, 127, 8, "int-quantized", rounds_activations=True),
    "int8-weight-only": RoundingGrid(torch.int8, 127.0, -127, 127, 8, "pack-quantized", rounds_activations=False),
    "int4-weight-only": RoundingGrid(
        torch.int8, 7.5, -8, 7, 4, "pack-quantized", rounds_activations=False, group_size=128
    ),
    "fp8": RoundingGrid(torch.float8_e4m3fn, _E4M3, -_E4M3, _E4M3, 8, "float-quantized", rounds_activations=True),
}
"""By format."""


_BLOCK = 128
"""Columns whose errors are spread over the others at once."""
_LEAST_DAMPING = 0.01
"""Share of the mean moment added to each: makes the inverse stable. A text with few inputs says little about relations
of columns: the share is the number of columns per input, where larger."""
_STEPS = 20
"""Powers of the inputs' magnitudes that are tried."""
_LEAST_SHARE, _SHARES = 0.5, 11
"""Scales tried: this many, down to this share of the largest element."""


def relative_error(weight: Tensor, rounded: Tensor, moments: Tensor) -> float:
    """Mean square of the error of a layer's outputs over that of the outputs, for inputs with these moments."""
    weight, error = weight.float(), rounded.float() - weight.float()
    size = float(((weight @ moments) * weight).sum())
    return float(((error @ moments) * error).sum()) / size if size > 0 else 0.0


def compensate(weight: Tensor, scales: Tensor, grid: RoundingGrid, moments: Tensor, num_inputs: int) -> QuantizedWeight:
    """GPTQ (arXiv 2210.17323): columns are rounded one after the other, those with the largest moments first, and later
    columns compensate the error of each as far as possible. `num_inputs`: inputs behind the moments. Columns keep their
    order and scales."""
    rows, columns = weight.shape
    size = grid.group_size or columns
    order = moments.diagonal().argsort(descending=True, stable=True)
    inverse = _inverse_root(moments[order][:, order], max(_LEAST_DAMPING, columns / max(1, num_inputs)))
    left = weight.float()[:, order]
    spread = scales.repeat_interleave(size, dim=1)[:, order]
    rounded = torch.empty_like(left)
    for first in range(0, columns, _BLOCK):
        end = min(first + _BLOCK, columns)
        errors = left.new_empty(rows, end - first)
        for column in range(first, end):
            rounded[:, column] = grid.round(left[:, column] / spread[:, column])
            error = (left[:, column] - rounded[:, column] * spread[:, column]) / inverse[column, column]
            left[:, column:end] -= error.unsqueeze(1) * inverse[column, column:end]
            errors[:, column - first] = error
        left[:, end:] -= errors @ inverse[first:end, end:]
    values = torch.empty_like(rounded)
    values[:, order] = rounded
    return QuantizedWeight(values.to(grid.dtype), scales, size)


def _inverse_root(moments: Tensor, share: float) -> Tensor:
    """The upper triangular factor of the inverse, with `share` of the mean added to each moment; inputs that were
    always 0 do not count."""
    moments = moments.clone()
    diagonal = moments.diagonal()
    diagonal[diagonal == 0] = 1.0
    damping = share * diagonal.mean()
    for _ in range(8):
        diagonal += damping
        root, failed = torch.linalg.cholesky_ex(moments)
        if not failed:
            upper: Tensor
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(root), upper=True)
            if not failed:
                return upper
        damping *= 10
    return torch.eye(len(moments), device=moments.device)  # moments that are no numbers: rounded to nearest


def best_input_scales(
    weights: Sequence[Tensor], moments: Tensor, magnitudes: Tensor, grid: RoundingGrid, dtype: torch.dtype
) -> Tensor:
    """AWQ (arXiv 2306.00978): factors of these weights' columns, float32 [in_features], for inputs divided by the same:
    the power of the inputs' mean magnitudes [in_features] with the least error; all 1 if none is better."""
    best, least = torch.ones_like(magnitudes), float("inf")
    for step in range(_STEPS):
        scales = magnitudes.clamp_min(1e-4) ** (step / _STEPS)
        scales = scales / (scales.max() * scales.min()).sqrt()
        error = 0.0
        for weight in weights:
            scaled = weight.float() * scales
            rounded = grid.nearest(scaled, grid.scales(scaled, dtype)).dequantized() / scales
            difference = rounded - weight.float()
            error += float(((difference @ moments) * difference).sum())
        if error < least:
            best, least = scales, error
    return best


def clipped_scales(weight: Tensor, scales: Tensor, grid: RoundingGrid, moments: Tensor) -> Tensor:
    """Scales [rows, groups] that cut off the largest elements where finer steps for the rest are worth it, given each
    group's inputs, as in AWQ."""
    size = grid.group_size or weight.shape[1]
    num_groups = weight.shape[1] // size
    groups = torch.arange(num_groups, device=weight.device)
    own = moments.view(num_groups, size, num_groups, size)[groups, :, groups]
    best, least = scales, torch.full_like(scales, float("inf"))
    for share in torch.linspace(1.0, _LEAST_SHARE, _SHARES).tolist():
        tried = scales * share
        difference = (grid.nearest(weight, tried).dequantized() - weight.float()).view(len(weight), num_groups, size)
        by_group = difference.transpose(0, 1)
        error = ((by_group @ own) * by_group).sum(-1).t()
        best, least = torch.where(error < least, tried, best), torch.minimum(error, least)
    return best
