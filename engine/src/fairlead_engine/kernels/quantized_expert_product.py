"""Products of rows with the quantised weights of the experts that they go to, without a look at who goes where."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.dispatch import with_kernel
from fairlead_engine.kernels.expert_product import ExpertPairs


class ExpertIntegers(NamedTuple):
    """Weights of experts of one shape: element (e, i, j) is `values[e, i, j] * scales[e, i, g] + offsets[e, i, g]`,
    where g is the column's group."""

    values: Tensor
    """int8 or float8_e4m3fn [experts, out_features, in_features]."""
    scales: Tensor
    """float32 [experts, out_features, groups]; the last group may be narrower."""
    group_size: int
    """Columns that share a scale."""
    offsets: Tensor | None = None
    """float32 [experts, out_features, groups]; None = 0."""
    groups: Tensor | None = None
    """int64 [experts, in_features]: the group of each column; None = j // group_size."""


@with_kernel("fairlead_engine.kernels.quantized_expert_product_kernel")
def quantized_expert_product(
    x: Tensor, x_scales: Tensor | None, weights: ExpertIntegers, pairs: ExpertPairs, dtype: torch.dtype
) -> Tensor:
    """x [rows, in_features], each of which is of as many pairs, side by side, times their experts' weights:
    [pairs, out_features] in `dtype`.

    x is in `dtype`, or, with `x_scales` float32 [rows, 1], in a format of weights; then row i is meant times scale i.
    """
    rows = x.float() if x_scales is None else x.float() * x_scales
    rows = rows.repeat_interleave(len(pairs.experts) // max(1, len(x)), dim=0)
    product = rows.new_zeros(len(rows), weights.values.shape[1])
    for index in range(len(weights.values)):  # each with all, of which its own are taken
        computed = functional.linear(rows, _decoded(weights, index))
        product = torch.where((pairs.experts == index).unsqueeze(1), computed, product)
    return product.to(dtype)


def _decoded(weights: ExpertIntegers, index: int) -> Tensor:
    """An expert's weight, float32 [out_features, in_features]."""
    values = weights.values[index].float()
    if weights.groups is not None:
        groups = weights.groups[index]
    else:
        groups = torch.arange(values.shape[1], device=values.device) // weights.group_size
    decoded = values * weights.scales[index].index_select(1, groups)
    return decoded if weights.offsets is None else decoded + weights.offsets[index].index_select(1, groups)
