"""Weights that become one product: of projections of one input, and of all experts of a layer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairlead_engine.kernels.dispatch import triton_lacks
from fairlead_engine.kernels.expert_product import ExpertWeights
from fairlead_engine.model.linear import Linear, make_linear
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight, WeightFormat


@dataclass(frozen=True, slots=True)
class WeightStack:
    """Weights below one another that become one product."""

    weight_format: WeightFormat | None
    """None = floats."""
    weights: list[Any]
    """Of one format and grouping, or floats."""

    def takes(self, weight_format: WeightFormat | None, weight: QuantizedWeight | Tensor) -> bool:
        if weight_format is None or self.weight_format is None:
            return weight_format is self.weight_format
        return weight_format == self.weight_format and bool(self.weights[0].can_be_below(weight))

    @property
    def num_rows(self) -> int:
        return sum(len(each if self.weight_format is None else each.values) for each in self.weights)

    def linear(self, bias: Tensor | None, dtype: torch.dtype) -> tuple[Linear, int]:
        """The product, and the bytes of its weight."""
        if self.weight_format is None:
            weight = torch.cat(self.weights)
            return make_linear(weight, bias), weight.nbytes
        layer = self.weight_format.linear(QuantizedWeight.stacked(self.weights), bias, dtype)
        return layer, layer.weight_bytes


class ExpertProjections(NamedTuple):
    """The names of an expert's layers in the checkpoint."""

    gate_up: Mapping[str, int]
    """One or several, each with its output size."""
    down: str


def put_together(experts: Iterable[Sequence[WeightStack]], num_experts: int) -> ExpertWeights | None:
    """The quantised weights of all experts, of one format and shape; None where an expert's are not one product, or
    groups differ in size. Each is copied by itself: few are in memory twice."""
    values = scales = offsets = groups = None
    group_size = 0
    for index, stacks in enumerate(experts):
        if len(stacks) > 1:
            return None
        weight = QuantizedWeight.stacked(stacks[0].weights)
        if values is None or scales is None:
            group_size = weight.group_size
            values = weight.values.new_empty(num_experts, *weight.values.shape)
            scales = weight.scales.new_empty(num_experts, *weight.scales.shape)
        if weight.group_size != group_size or weight.scales.shape != scales.shape[1:]:
            return None
        values[index], scales[index] = weight.values, weight.scales
        if weight.offsets is not None:
            offsets = torch.zeros_like(scales) if offsets is None else offsets
            offsets[index] = weight.offsets
        if weight.groups is not None:
            if groups is None:
                columns = torch.arange(values.shape[2], device=values.device) // group_size
                groups = columns.repeat(num_experts, 1)
            groups[index] = weight.groups
    assert values is not None and scales is not None
    return ExpertWeights(values, scales, group_size, offsets, groups)


def groups_experts(device: torch.device) -> bool:
    """Whether a model's experts are computed by one product for all on the device, instead of one each."""
    return device.type == "cuda" and triton_lacks() is None


def decodes_within(weight_format: WeightFormat, device: torch.device) -> bool:
    """Whether the experts' product takes this format on the device: 8-bit floats need a GPU that computes with them."""
    return weight_format.name != "fp8" or device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)
