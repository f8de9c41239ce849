"""Which experts a token goes to, and what each counts."""

from typing import NamedTuple

import torch
from torch import Tensor

_LEAST_SUM = 1e-20
"""Added to that of sigmoids, which may all be 0."""


class ExpertRouting(NamedTuple):
    """How a model's router chooses, by what it says of each expert."""

    num_chosen: int
    """Experts of a token."""
    normalised: bool = True
    """Whether their weights sum to 1, before `scale`."""
    num_groups: int = 1
    """Into which experts are divided, neighbours together,"""
    num_chosen_groups: int = 1
    """and of which a token's experts come from so many alone (DeepSeek-V2, arXiv 2405.04434)."""
    scale: float = 1.0
    """What weights are multiplied by."""
    bias: Tensor | None = None
    """float32 [experts]: scores are sigmoids, each by itself, and this is added to them where experts are compared, but
    does not count in their weights (DeepSeek-V3, arXiv 2412.19437); None = they are a softmax over all experts."""

    @property
    def num_counted(self) -> int:
        """How many of its experts a group is judged by."""
        return 1 if self.bias is None else 2

    @property
    def least_sum(self) -> float:
        """Added to that of scores."""
        return 0.0 if self.bias is None else _LEAST_SUM


def route_top_k(logits: Tensor, routing: ExpertRouting) -> tuple[Tensor, Tensor]:
    """A token's experts, from logits [rows, experts]: float32 weights, and int64 indices, both [rows, num_chosen], best
    first."""
    scores, experts = choose_top_k(logits, routing)
    return shares(scores, routing), experts


def choose_top_k(logits: Tensor, routing: ExpertRouting) -> tuple[Tensor, Tensor]:
    """The same with scores, which are not weights yet. Scores are float32 (arXiv 2401.04088). A group is as good as its
    best expert, or as its best two together where there is a bias."""
    bias = routing.bias
    scores = logits.float().sigmoid() if bias is not None else torch.softmax(logits, dim=-1, dtype=torch.float32)
    merits = scores if bias is None else scores + bias
    if routing.num_groups > 1:
        merits = _within_groups(merits, routing, routing.num_counted)
    best, experts = merits.topk(routing.num_chosen, dim=-1)
    return best if bias is None else scores.gather(1, experts), experts


def shares(scores: Tensor, routing: ExpertRouting) -> Tensor:
    """From the scores of a token's experts [rows, num_chosen] to their weights."""
    if routing.normalised:
        scores = scores / (scores.sum(dim=-1, keepdim=True) + routing.least_sum)
    return scores if routing.scale == 1.0 else scores * routing.scale


def _within_groups(merits: Tensor, routing: ExpertRouting, num_counted: int) -> Tensor:
    """The same with minus infinity for experts of all but the best groups."""
    grouped = merits.view(len(merits), routing.num_groups, -1)
    of_groups = grouped.topk(min(num_counted, grouped.shape[-1]), dim=-1).values.sum(-1)
    chosen = of_groups.topk(routing.num_chosen_groups, dim=-1).indices
    is_out = torch.ones_like(of_groups, dtype=torch.bool).scatter_(1, chosen, False)
    return grouped.masked_fill(is_out.unsqueeze(-1), float("-inf")).flatten(1)
