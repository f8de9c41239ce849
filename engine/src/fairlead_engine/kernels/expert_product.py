"""Products of rows with the weights of the experts that they go to, without a look at who goes where."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.dispatch import with_kernel


class ExpertPairs(NamedTuple):
    """Tokens paired with the experts they go to, a token's pairs side by side."""

    experts: Tensor
    """int64 [pairs]."""
    order: Tensor
    """int64 [pairs]: the pairs of the first expert, then those of the second, and so on."""
    ends: Tensor
    """int64 [experts]: where those of each end."""


def pair_up(experts: Tensor, num_experts: int) -> ExpertPairs:
    """experts [tokens, each token's], int64."""
    flat = experts.flatten()
    counts = flat.new_zeros(num_experts).scatter_add_(0, flat, torch.ones_like(flat))
    return ExpertPairs(flat, flat.argsort(stable=True), counts.cumsum(0))


@with_kernel("fairlead_engine.kernels.expert_product_kernel")
def expert_product(x: Tensor, weights: Tensor, pairs: ExpertPairs) -> Tensor:
    """x [rows, in_features], each of which is of as many pairs, side by side, times their experts' weights
    [experts, out_features, in_features]: [pairs, out_features]."""
    rows = x.repeat_interleave(len(pairs.experts) // max(1, len(x)), dim=0)
    product = rows.new_zeros(len(rows), weights.shape[1])
    for index, weight in enumerate(weights):  # each with all, of which its own are taken
        product = torch.where((pairs.experts == index).unsqueeze(1), functional.linear(rows, weight), product)
    return product
