"""What a layer's attention does with scores beside the softmax, and attention with it in plain torch."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fairlead_engine.kernels.attention.tree_rows import within_window


class Scoring(NamedTuple):
    """As published models have it; by default scores are as they are and everything before a token is seen."""

    window: int = 0
    """How many tokens, its own included, a query sees; 0 = all."""
    soft_cap: float = 0.0
    """Scores are bent into ± this (Gemma 2, arXiv 2408.00118); 0 = they are not."""
    sinks: Tensor | None = None
    """float32 [heads]: a score of each head that takes its share of the softmax and brings no value (gpt-oss)."""

    @property
    def is_plain(self) -> bool:
        return not self.window and not self.soft_cap and self.sinks is None

    def within(self, num_tokens: int) -> "Scoring":
        """The same for a context of so many tokens: a window as wide as that is none."""
        return self._replace(window=0) if 0 < num_tokens <= self.window else self


PLAIN = Scoring()


def attend_scored(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, scoring: Scoring, *, has_trees: bool = False
) -> Tensor:
    """Attention of query [..., queries, head_dim] to key and value [..., tokens, head_dim].

    `visible` bool [..., queries, tokens]: each query's own token and all before it, which begin at the first one, or
    some of them with `has_trees`. The sinks are such as can be expanded to [..., queries, 1], however heads lie among
    these dimensions.
    """
    if scoring.window and has_trees:
        visible = within_window(visible, scoring.window)
    elif scoring.window:
        tokens = torch.arange(visible.shape[-1], device=visible.device)
        visible = visible & (tokens >= visible.sum(-1, keepdim=True) - scoring.window)
    if not scoring.soft_cap and scoring.sinks is None:
        return scaled_dot_product_attention(query, key, value, attn_mask=visible)
    scores = (query @ key.transpose(-1, -2)).float() * query.shape[-1] ** -0.5
    if scoring.soft_cap:
        scores = scoring.soft_cap * torch.tanh(scores / scoring.soft_cap)
    scores = scores.masked_fill(~visible, float("-inf"))
    if scoring.sinks is not None:
        sinks = scoring.sinks.expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sinks), -1)
    weights: Tensor = scores.softmax(-1)[..., : key.shape[-2]].to(value.dtype)
    return weights @ value
