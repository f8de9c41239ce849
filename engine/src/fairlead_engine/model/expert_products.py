"""Weights of all experts of a layer in one piece, for products that do not ask who goes where."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from fairlead_engine.kernels.dispatch import triton_lacks
from fairlead_engine.kernels.expert_product import ExpertWeights
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight
from fairlead_engine.model.quantization.weight_format import WeightFormat
from fairlead_engine.model.weight_stack import WeightStack


class ExpertProjections(NamedTuple):
    """The names of an expert's layers in the checkpoint."""

    gate_up: Mapping[str, int]
    """One or several, each with its output size."""
    down: str


def put_together(experts: Iterable[Sequence[WeightStack]], num_experts: int) -> ExpertWeights | None:
    """The quantised weights of all experts, of one format and shape; None where an expert's are no single product, or
    some have groups of another size. Each is copied as it comes, so that few are there twice."""
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
    """Whether a model's experts are computed there by one product for all, not by one for each."""
    return device.type == "cuda" and triton_lacks() is None


def decodes_within(weight_format: WeightFormat, device: torch.device) -> bool:
    """Whether that product can have weights of this format there: 8-bit floats take a GPU that knows them."""
    return weight_format.name != "fp8" or device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)
