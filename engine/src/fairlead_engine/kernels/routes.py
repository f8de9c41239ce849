"""Each token's experts and their weights, and each expert's tokens, without the host reading them."""

from typing import NamedTuple

import torch
from torch import Tensor

from fairlead_engine.kernels.dispatch import with_kernel

_LEAST_SUM = 1e-20
"""Added to the sum of sigmoids, which may all be 0."""


class ExpertRouting(NamedTuple):
    """How a model's router chooses from its logits."""

    num_chosen: int
    """Experts of a token."""
    normalised: bool = True
    """Whether their weights sum to 1, before `scale`."""
    num_groups: int = 1
    """Groups of neighbouring experts."""
    num_chosen_groups: int = 1
    """Groups for a token's experts (DeepSeek-V2, arXiv 2405.04434)."""
    scale: float = 1.0
    """Factor of the weights."""
    bias: Tensor | None = None
    """float32 [experts]: scores are sigmoids, and the bias is added to them for comparing experts, but not in their
    weights (DeepSeek-V3, arXiv 2412.19437); None = scores are a softmax over all experts."""
    is_softmax: bool = False
    """Whether scores with a bias are a softmax, too (ERNIE 4.5)."""
    factors: Tensor | None = None
    """float32 [experts], of their weights, which sum to 1 before; None = 1."""
    jitter: float | None = None
    """Two experts of a token are weighted apart, by `mix_apart`; None = all together."""

    @property
    def is_known_to_products(self) -> bool:
        """Whether products turn scores into weights by themselves."""
        return self.factors is None and self.jitter is None

    @property
    def num_counted(self) -> int:
        """Number of best experts whose scores are a group's."""
        return 1 if self.bias is None else 2

    @property
    def least_sum(self) -> float:
        """Added to the sum of scores."""
        return 0.0 if self.bias is None else _LEAST_SUM


def route_top_k(logits: Tensor, routing: ExpertRouting) -> tuple[Tensor, Tensor]:
    """A token's experts, from logits [rows, experts]: float32 weights, int64 indices [rows, num_chosen], best first."""
    if routing.jitter is not None:
        return mix_apart(logits, routing.jitter)
    scores, experts = choose_top_k(logits, routing)
    weights = shares(scores, routing)
    return weights if routing.factors is None else weights * routing.factors[experts], experts


def mix_apart(logits: Tensor, jitter: float) -> tuple[Tensor, Tensor]:
    """The best expert of each row and the best of the others, each with its share among the experts that score nearly
    as high (SparseMixer, arXiv 2409.12136): `route_top_k`."""
    scores, weights, experts = logits.float(), [], []
    rest = scores
    for _ in range(2):
        best, expert = rest.max(-1, keepdim=True)
        is_far = (best - scores) / scores.abs().maximum(best) > 2 * jitter
        weights.append(rest.masked_fill(is_far, float("-inf")).softmax(-1).gather(1, expert))
        experts.append(expert)
        rest = rest.scatter(1, expert, float("-inf"))
    return torch.cat(weights, 1), torch.cat(experts, 1)


def choose_top_k(logits: Tensor, routing: ExpertRouting) -> tuple[Tensor, Tensor]:
    """`route_top_k`, with scores instead of weights. Scores are float32 (arXiv 2401.04088). A group's score is its best
    expert's, or its best two experts' together with a bias."""
    bias = routing.bias
    is_softmax = bias is None or routing.is_softmax
    scores = torch.softmax(logits, dim=-1, dtype=torch.float32) if is_softmax else logits.float().sigmoid()
    merits = scores if bias is None else scores + bias
    if routing.num_groups > 1:
        merits = _within_groups(merits, routing, routing.num_counted)
    best, experts = merits.topk(routing.num_chosen, dim=-1)
    return best if bias is None else scores.gather(1, experts), experts


def shares(scores: Tensor, routing: ExpertRouting) -> Tensor:
    """Scores of a token's experts [rows, num_chosen] → their weights."""
    if routing.normalised:
        scores = scores / (scores.sum(dim=-1, keepdim=True) + routing.least_sum)
    return scores if routing.scale == 1.0 else scores * routing.scale


def _within_groups(merits: Tensor, routing: ExpertRouting, num_counted: int) -> Tensor:
    """The same with minus infinity for experts outside the best groups."""
    grouped = merits.view(len(merits), routing.num_groups, -1)
    of_groups = grouped.topk(min(num_counted, grouped.shape[-1]), dim=-1).values.sum(-1)
    chosen = of_groups.topk(routing.num_chosen_groups, dim=-1).indices
    is_out = torch.ones_like(of_groups, dtype=torch.bool).scatter_(1, chosen, False)
    return grouped.masked_fill(is_out.unsqueeze(-1), float("-inf")).flatten(1)


class Routes(NamedTuple):
    """Pairs of tokens and their experts: pair p is of token p // each."""

    experts: Tensor
    """int32 [tokens, each], a token's best first."""
    scores: Tensor
    """float32 [tokens, each]; `shares` turns them into weights."""
    order: Tensor
    """int32 [experts, tokens]: an expert's pairs, ascending; undefined behind them."""
    counts: Tensor
    """int32 [experts]: number of an expert's pairs."""
    largest: Tensor | None = None
    """float32 [tokens]: the largest magnitude of each row, where kernels round rows; None = they do not."""
    largest_within: Tensor | None = None
    """float32 [pairs]: zeros, for the largest magnitudes of the pairs' results."""

    @property
    def num_pairs(self) -> int:
        return self.experts.numel()


@with_kernel("fairlead_engine.kernels.routes_kernel")
def find_routes(logits: Tensor, routing: ExpertRouting, x: Tensor, rounds: bool = False) -> Routes:
    """From a router's logits [tokens, experts] for x [tokens, hidden]; `rounds`: whether x and the experts' results are
    rounded by rows."""
    scores, experts = choose_top_k(logits, routing)
    return pair_up(experts, scores, logits.shape[1])


def pair_up(experts: Tensor, scores: Tensor, num_experts: int) -> Routes:
    """Pairs from experts and scores [tokens, each]."""
    is_chosen = torch.arange(num_experts, device=experts.device).view(-1, 1, 1) == experts  # [experts, tokens, each]
    pairs = torch.arange(experts.numel(), device=experts.device)
    # Those of others come behind all of an expert's own, of which there is one a token at most.
    numbers = torch.where(is_chosen.flatten(1), pairs, experts.numel())
    order = numbers.sort(dim=1).values[:, : len(experts)]
    return Routes(experts.int(), scores, order.int(), is_chosen.flatten(1).sum(1, dtype=torch.int32))


def weighted_routes(
    logits: Tensor, routing: ExpertRouting, x: Tensor, rounds: bool = False
) -> tuple[Routes, ExpertRouting]:
    """`find_routes`, and a routing with the same weights that products know: without `factors` and `jitter`."""
    final = ExpertRouting(routing.num_chosen, normalised=False)
    if routing.jitter is None:
        routes, factors = find_routes(logits, routing, x, rounds), routing.factors
        assert factors is not None, "`find_routes` is enough"
        return routes._replace(scores=shares(routes.scores, routing) * factors[routes.experts]), final
    weights, experts = route_top_k(logits, routing)
    routes = pair_up(experts, weights, logits.shape[1])
    if not rounds:
        return routes, final
    return routes._replace(largest=x.abs().amax(1).float(), largest_within=weights.new_zeros(weights.numel())), final
