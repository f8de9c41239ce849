"""Weights as compressed-tensors stores them: what `fairlead-engine quantize` writes, and others read."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairlead_engine.kernels.rounded_rows import E4M3_ROWS
from fairlead_engine.model.quantization.packed_integers import pack
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight

_STRATEGY = "strategy"


@dataclass(frozen=True, slots=True)
class RoundingGrid:
    """The numbers that weights are rounded to once they are scaled, and how they are stored."""

    dtype: torch.dtype
    largest: float
    """What the element of largest magnitude that shares a scale is scaled to."""
    low: float
    high: float
    num_bits: int
    layout: str
    rounds_activations: bool
    group_size: int | None = None
    """Inputs that share a scale; None = all."""

    def scales(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """float32 [rows, groups] for a weight [rows, in_features], as numbers that `dtype` has."""
        groups = weight.float().view(len(weight), -1, self.group_size or weight.shape[1])
        scales = (groups.abs().amax(-1) / self.largest).to(dtype).float()
        return torch.where(scales == 0, torch.ones_like(scales), scales)

    def round(self, quotients: Tensor) -> Tensor:
        """Weights over their scales, to the nearest of these numbers, as floats."""
        if self.dtype.is_floating_point:
            return quotients.clamp(self.low, self.high).to(self.dtype).to(quotients.dtype)
        return quotients.round().clamp_(self.low, self.high)

    def nearest(self, weight: Tensor, scales: Tensor) -> QuantizedWeight:
        """Every element of a weight rounded by itself."""
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
        """The `quantization_config` of a checkpoint whose linear layers are stored so, but for those `ignored`."""
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
