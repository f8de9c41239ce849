"""Products of all experts of a layer with the rows that go to each, without a look at who goes where."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fairlead_engine.kernels.dispatch import triton_lacks
from fairlead_engine.kernels.expert_product import ExpertPairs, expert_product
from fairlead_engine.kernels.quantized_expert_product import ExpertIntegers, quantized_expert_product
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight
from fairlead_engine.model.quantization.weight_format import Rounding, WeightFormat
from fairlead_engine.model.weight_stack import WeightStack


class ExpertProjections(NamedTuple):
    """The names of an expert's layers in the checkpoint."""

    gate_up: Mapping[str, int]
    """One or several, each with its output size."""
    down: str


class ExpertProduct(Protocol):
    """x [rows, in_features] → [pairs, out_features], bias included; `pairs` has as many of each row, side by side."""

    @property
    def num_experts(self) -> int: ...

    @property
    def weight_bytes(self) -> int:
        """Memory of all that it holds."""
        ...

    def __call__(self, x: Tensor, pairs: ExpertPairs) -> Tensor: ...


class FloatExperts:
    """Of weights [experts, out_features, in_features]."""

    def __init__(self, weights: Tensor, bias: Tensor | None = None) -> None:
        """`bias` [experts, out_features]."""
        self._weights = weights
        self._bias = bias

    @property
    def num_experts(self) -> int:
        return len(self._weights)

    @property
    def weight_bytes(self) -> int:
        return self._weights.nbytes + _bytes_of(self._bias)

    def __call__(self, x: Tensor, pairs: ExpertPairs) -> Tensor:
        return _with_bias(expert_product(x, self._weights, pairs), self._bias, pairs)


class QuantizedExperts:
    """Of integers or 8-bit floats, which are decoded within the product."""

    def __init__(self, weights: ExpertIntegers, rounding: Rounding | None, bias: Tensor | None = None) -> None:
        """`rounding`: what becomes of rows before the product. `bias` [experts, out_features]."""
        self._weights = weights
        self._rounding = rounding
        self._bias = bias

    @property
    def num_experts(self) -> int:
        return len(self._weights.values)

    @property
    def weight_bytes(self) -> int:
        return sum(part.nbytes for part in self._weights if isinstance(part, Tensor)) + _bytes_of(self._bias)

    def __call__(self, x: Tensor, pairs: ExpertPairs) -> Tensor:
        rows, scales = x, None
        if self._rounding is not None:
            size = None if self._weights.scales.shape[2] == 1 else self._weights.group_size
            rows, scales = self._rounding(x, size)
        product = quantized_expert_product(rows, scales, self._weights, pairs, x.dtype)
        return _with_bias(product, self._bias, pairs)


def _with_bias(product: Tensor, bias: Tensor | None, pairs: ExpertPairs) -> Tensor:
    return product if bias is None else product.add_(bias.index_select(0, pairs.experts))


def _bytes_of(bias: Tensor | None) -> int:
    return 0 if bias is None else bias.nbytes


def put_together(experts: Iterable[Sequence[WeightStack]], num_experts: int) -> ExpertIntegers | None:
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
    return ExpertIntegers(values, scales, group_size, offsets, groups)


def groups_experts(device: torch.device) -> bool:
    """Whether a model's experts are computed there by one product for all, not by one for each."""
    return device.type == "cuda" and triton_lacks() is None


def decodes_within(weight_format: WeightFormat, device: torch.device) -> bool:
    """Whether that product can have weights of this format there: 8-bit floats take a GPU that knows them."""
    return weight_format.name != "fp8" or device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)
