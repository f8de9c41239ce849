"""Weights of projections of one input, below one another, as they become one product."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairlead_engine.model.linear import Linear, make_linear
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight
from fairlead_engine.model.quantization.weight_format import WeightFormat


@dataclass(frozen=True, slots=True)
class WeightStack:
    """Weights below one another, which become one product."""

    weight_format: WeightFormat | None
    """None = floats."""
    weights: list[Any]
    """Of one format and groups, or of floats."""

    def takes(self, weight_format: WeightFormat | None, weight: QuantizedWeight | Tensor) -> bool:
        """Whether another can go below those that are here."""
        if weight_format is None or self.weight_format is None:
            return weight_format is self.weight_format
        return weight_format == self.weight_format and bool(self.weights[0].can_be_below(weight))

    @property
    def num_rows(self) -> int:
        return sum(len(each if self.weight_format is None else each.values) for each in self.weights)

    def linear(self, bias: Tensor | None, dtype: torch.dtype) -> tuple[Linear, int]:
        """The product, and the bytes that its weight takes."""
        if self.weight_format is None:
            weight = torch.cat(self.weights)
            return make_linear(weight, bias), weight.nbytes
        layer = self.weight_format.linear(QuantizedWeight.stacked(self.weights), bias, dtype)
        return layer, layer.weight_bytes
