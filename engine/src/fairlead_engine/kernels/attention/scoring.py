"""Visible tokens and scores: trees of drafts, images, windows, soft caps, sinks; and attention with them in torch.

A tree of drafts lies in the cache in the step's order, node by node behind its root, the last known token. A row's view
is a number, before which all tokens are visible, and a bit for each later token. Where the tokens of an image see each
other, the number of each is the image's end, without bits; a window still begins by the row's own position.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Count = TypeVar("Count", int, Tensor)
MOST_NODES = 64
"""Of one tree with its root: one bit each."""


class TreeRows(NamedTuple):
    """Of all rows of a step, those outside trees and images too."""

    limits: Tensor
    """int64 [rows]: first tokens of the context, all visible."""
    bits: Tensor
    """int64 [rows]: bit j is set where token j behind the limit is visible, the row itself included; 0 for rows outside
    trees, which see only the first tokens."""

    def ahead(self, rows: Tensor | slice, positions: Tensor) -> Tensor:
        """int64: later tokens that rows at these positions see outside trees, those of their image."""
        return torch.where(self.bits[rows] == 0, self.limits[rows] - 1 - positions, 0)


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive sequences padded to one shape: `queries` rows and `context` tokens each. Padding repeats a row or a
    slot of the same sequence: other sequences' contents never come near it."""

    rows: Tensor
    """int64 [sequences, queries]: rows of the query."""
    slots: Tensor
    """int64 [sequences, context]: slots of the cache."""
    visible: Tensor
    """bool [sequences, queries, context]: whether a query may look at a token."""
    kept: Tensor
    """int64 [rows of the group]: places of these rows among the flattened [sequences x queries]."""
    has_trees: bool
    """Whether some queries do not see all earlier tokens, or see later ones."""
    ahead: Tensor | int = 0
    """int64 [sequences, queries]: later tokens that each query sees (`TreeRows.ahead`); 0 = none see any."""


def ancestor_bits(parents: list[int]) -> npt.NDArray[np.int64]:
    """Bits of each node of a tree [nodes], the root first: itself and its ancestors. `parents`: of each node but the
    root; parents come before their children."""
    found = [1]
    for node, parent in enumerate(parents, start=1):
        found.append(found[parent] | 1 << node)
    return np.array(found, np.uint64).view(np.int64)


def visible_tokens(limits: Tensor, bits: Tensor, context: int) -> Tensor:
    """bool [..., context]: which tokens of a context each row sees; `limits` and `bits` int64 [...]."""
    offset = torch.arange(context, device=limits.device) - limits.unsqueeze(-1)
    is_set = (bits.unsqueeze(-1) >> offset.clamp(0, MOST_NODES - 1)) & 1 == 1
    return (offset < 0) | (is_set & (offset < MOST_NODES))


def within_window(visible: Tensor, width: int | Tensor) -> Tensor:
    """The same within the last `width` tokens of each row's view [..., tokens]; widths of rows are [..., 1]."""
    return visible & (visible.flip(-1).cumsum(-1).flip(-1) <= width)


class Scoring(NamedTuple):
    """As published models have it; by default scores stay and every earlier token is seen."""

    window: int = 0
    """Tokens that a query sees, itself included; 0 = all."""
    soft_cap: float = 0.0
    """Scores are bent into ± this (Gemma 2, arXiv 2408.00118); 0 = no cap."""
    sinks: Tensor | None = None
    """float32 [heads]: a score of each head with a share of the softmax and no value (gpt-oss)."""
    is_aligned: bool = False
    """Whether windows begin at multiples of `window` (chunked attention of Llama 4); else they end with the query."""

    @property
    def is_plain(self) -> bool:
        return not self.window and not self.soft_cap and self.sinks is None

    def within(self, num_tokens: int) -> "Scoring":
        """The scoring for a context of `num_tokens`, without a window that covers it."""
        return self._replace(window=0) if 0 < num_tokens <= self.window else self

    def width(self, num_visible: Count) -> Count | int:
        """Tokens that a query sees in its window, of `num_visible` with itself."""
        return (num_visible - 1) % self.window + 1 if self.is_aligned else self.window


PLAIN = Scoring()


def attend_scored(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    scoring: Scoring,
    *,
    has_trees: bool = False,
    ahead: Tensor | int = 0,
) -> Tensor:
    """Attention of query [..., queries, head_dim] to key and value [..., tokens, head_dim]. `visible` bool [...,
    queries, tokens]: each query's own token and all earlier ones from the first on, or some of them, and `ahead` [...,
    queries, 1] later ones, with `has_trees`.
    Sinks can be expanded to [..., queries, 1], whichever dimensions are heads."""
    if scoring.window:
        num_visible = visible.sum(-1, keepdim=True) - ahead
        width = scoring.width(num_visible)
        if has_trees:
            visible = within_window(visible, width + ahead)
        else:
            visible = visible & (torch.arange(visible.shape[-1], device=visible.device) >= num_visible - width)
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
