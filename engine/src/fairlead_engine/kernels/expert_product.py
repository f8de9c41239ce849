"""Products of rows with the weights of their experts, without routes on the host."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.dispatch import with_kernel
from fairlead_engine.kernels.gates import SILU, Gate
from fairlead_engine.kernels.rounded_rows import RowFormat, rounded_blocks, rounded_rows
from fairlead_engine.kernels.routes import ExpertRouting, Routes, shares


class ExpertWeights(NamedTuple):
    """Weights of experts of one shape: element (e, i, j) is `values[e, i, j] * scales[e, i, g] + offsets[e, i, g]`,
    where g is the column's group."""

    values: Tensor
    """[experts, out_features, in_features]: int8, float8_e4m3fn, or floats, which have only a bias beside them."""
    scales: Tensor | None = None
    """float32 [experts, out_features, groups]; the last group may be narrower."""
    group_size: int = 0
    """Columns that share a scale."""
    offsets: Tensor | None = None
    """float32 [experts, out_features, groups]; None = 0."""
    groups: Tensor | None = None
    """int64 [experts, in_features]: the group of each column; None = j // group_size."""
    bias: Tensor | None = None
    """[experts, out_features], in the activations' dtype."""
    row_format: RowFormat | None = None
    """Rows are rounded to it before the product; None = not at all."""

    @property
    def rounds_by_rows(self) -> bool:
        """Whether a row is rounded as a whole, not in blocks of columns."""
        return self.row_format is not None and not self.rounds_by_blocks

    @property
    def rounds_by_blocks(self) -> bool:
        """Whether the columns with one scale are rounded together: always with integers."""
        is_float = self.row_format is not None and self.row_format.dtype.is_floating_point
        return is_float and self.scales is not None and self.scales.shape[2] > 1

    @property
    def num_bytes(self) -> int:
        return sum(part.nbytes for part in self if isinstance(part, Tensor))


@with_kernel("fairlead_engine.kernels.expert_product_kernel")
def gated_product(
    x: Tensor, weights: ExpertWeights, routes: Routes, gate: Gate = SILU, added: Tensor | None = None
) -> Tensor:
    """x [tokens, in_features] times the weights of their experts, through `gate`: [pairs, out_features / 2]. Writes the
    rows' largest magnitudes to `routes.largest_within`. `added` [pairs, out_features]: to the products first."""
    rows = _rounded(x, weights).repeat_interleave(routes.experts.shape[1], dim=0)
    product = _product(rows, weights, routes)
    return gate((product if added is None else product + added).to(x.dtype))


@with_kernel("fairlead_engine.kernels.expert_product_kernel")
def row_product(x: Tensor, weights: ExpertWeights, routes: Routes) -> Tensor:
    """x [tokens, in_features] times the float weights of their experts: [pairs, out_features]."""
    return _product(x.repeat_interleave(routes.experts.shape[1], dim=0), weights, routes)


@with_kernel("fairlead_engine.kernels.expert_product_kernel")
def weighted_product(rows: Tensor, weights: ExpertWeights, routes: Routes, routing: ExpertRouting) -> Tensor:
    """Result of `gated_product` [pairs, in_features] times the weights of the pairs' experts, times the expert's weight
    for the token: [tokens, each, out_features], to be summed for each token."""
    product = _product(_rounded(rows, weights), weights, routes).to(rows.dtype)
    by_token = product.view(*routes.experts.shape, product.shape[1])
    return by_token * shares(routes.scores, routing).unsqueeze(-1).to(rows.dtype)


def _product(rows: Tensor, weights: ExpertWeights, routes: Routes) -> Tensor:
    """rows [pairs, in_features] → [pairs, out_features], with the bias; in float32 where weights are decoded."""
    experts = routes.experts.flatten()
    if weights.scales is not None:
        rows = rows.float()
    product = rows.new_zeros(len(rows), weights.values.shape[1])
    for index in range(len(weights.values)):  # each with all, of which its own are taken
        bias = None if weights.bias is None else weights.bias[index].to(rows.dtype)
        computed = functional.linear(rows, _decoded(weights, index), bias)
        product = torch.where((experts == index).unsqueeze(1), computed, product)
    return product


def _rounded(rows: Tensor, weights: ExpertWeights) -> Tensor:
    """Rows after rounding, as floats."""
    if weights.row_format is None:
        return rows
    if weights.rounds_by_blocks:
        return rounded_blocks(rows, weights.group_size, weights.row_format)
    values, scales = rounded_rows(rows, weights.row_format)
    return values.float() * scales


def _decoded(weights: ExpertWeights, index: int) -> Tensor:
    """An expert's weight [out_features, in_features]; float32 where it was quantised."""
    values = weights.values[index]
    if weights.scales is None:
        return values
    if weights.groups is not None:
        groups = weights.groups[index]
    else:
        groups = torch.arange(values.shape[1], device=values.device) // weights.group_size
    decoded = values.float() * weights.scales[index].index_select(1, groups)
    return decoded if weights.offsets is None else decoded + weights.offsets[index].index_select(1, groups)
