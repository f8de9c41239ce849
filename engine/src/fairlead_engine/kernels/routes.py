"""Who goes where: the experts of each token, and the tokens of each expert, without a look from the host."""

from typing import NamedTuple

import torch
from torch import Tensor

from fairlead_engine.kernels.dispatch import with_kernel
from fairlead_engine.kernels.route_top_k import ExpertRouting, choose_top_k


class Routes(NamedTuple):
    """Tokens paired with the experts they go to: pair p is of token p // each."""

    experts: Tensor
    """int32 [tokens, each], a token's best first."""
    scores: Tensor
    """float32 [tokens, each], which `route_top_k.shares` makes weights of."""
    order: Tensor
    """int32 [experts, tokens]: an expert's pairs, ascending; behind them there is anything."""
    counts: Tensor
    """int32 [experts]: how many those are."""
    largest: Tensor | None = None
    """float32 [tokens]: the largest magnitude of each row, where kernels round rows; None = they do not."""
    largest_within: Tensor | None = None
    """float32 [pairs]: zeros, for those of what comes of the pairs."""

    @property
    def num_pairs(self) -> int:
        return self.experts.numel()


@with_kernel("fairlead_engine.kernels.routes_kernel")
def find_routes(logits: Tensor, routing: ExpertRouting, x: Tensor, rounds: bool = False) -> Routes:
    """From a router's logits [tokens, experts] for x [tokens, hidden]; `rounds`: whether the rows of x and what experts
    make of them are rounded by rows."""
    scores, experts = choose_top_k(logits, routing)
    return pair_up(experts, scores, logits.shape[1])


def pair_up(experts: Tensor, scores: Tensor, num_experts: int) -> Routes:
    """Of experts and scores [tokens, each]."""
    is_chosen = torch.arange(num_experts, device=experts.device).view(-1, 1, 1) == experts  # [experts, tokens, each]
    pairs = torch.arange(experts.numel(), device=experts.device)
    # Those of others come behind all of an expert's own, of which there is one a token at most.
    numbers = torch.where(is_chosen.flatten(1), pairs, experts.numel())
    order = numbers.sort(dim=1).values[:, : len(experts)]
    return Routes(experts.int(), scores, order.int(), is_chosen.flatten(1).sum(1, dtype=torch.int32))
