"""Attention to a few keys of each context, chosen by an index: a short key of each token that is stored beside its own
key (DeepSeek-V3.2, arXiv 2512.02556).

A query's score of a token is a weighted sum, over the index's heads, of products with the token's index key, negative
products counting 0. The best tokens are chosen; of equal scores the earlier token is, so that a choice depends neither
on the division of a prompt into steps nor on the backend. In plain torch on any device: layers call it in place of a
backend's attention where a context is longer than the number of tokens to choose.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fairlead_engine.kernels.attention.backend import LayerCache, StepView
from fairlead_engine.kernels.attention.scoring import Group
from fairlead_engine.kernels.attention.stored_heads import StoredHeads

MAX_PRODUCTS = 2**24
"""Products of a query's head and an index key at a time: 64 MiB."""
MAX_GATHERED = 2**16
"""Chosen keys gathered at a time: 72 MiB with heads of 576 in bfloat16."""


class IndexQuery(NamedTuple):
    """Queries of the index."""

    heads: Tensor
    """[tokens, index heads, index_dim]."""
    weights: Tensor
    """[tokens, index heads]: of heads in a score."""


class ChosenKeys(NamedTuple):
    """Keys of a step's rows."""

    slots: Tensor
    """int64 [tokens, chosen]: slots of the cache (`StepView`), in the order of positions; the rest of a row repeats a
    slot of its sequence."""
    are_chosen: Tensor
    """bool [tokens, chosen]: False = the rest of a row."""


class StepChoice:
    """A step's choice of keys, handed from layer to layer."""

    def __init__(self) -> None:
        self.view: StepView | None = None
        """None = no layer has asked for it yet."""
        self.chosen: ChosenKeys | None = None
        """The last layer's; None = every row sees all of its context."""


def flat_slots(heads: StoredHeads) -> StoredHeads:
    """A view [slots, size] of a tensor with one head in any backend's layout."""
    return heads.flatten(0, heads.numbers.dim() - 2)


def choose_keys(query: IndexQuery, index: StoredHeads, groups: Sequence[Group], most: int) -> ChosenKeys | None:
    """The `most` best keys of each row; None where no context is longer. `index` [slots, index_dim]: with those of this
    step."""
    if max(group.slots.shape[1] for group in groups) <= most:
        return None
    slots, are_chosen = zip(*(_choose(query, index, group, most) for group in groups), strict=True)
    return ChosenKeys(torch.cat(slots), torch.cat(are_chosen))


def attend_chosen(query: Tensor, cache: LayerCache, chosen: ChosenKeys) -> Tensor:
    """As a backend's `attend`, to the chosen keys of a cache with one head of keys: some rows at a time."""
    keys, most = flat_slots(cache.keys), chosen.slots.shape[1]
    num_rows = max(1, MAX_GATHERED // most)
    mixed = []
    for first in range(0, len(query), num_rows):
        rows = slice(first, first + num_rows)
        seen = keys.gather(0, chosen.slots[rows].flatten()).floats(query.dtype).view(-1, 1, most, query.shape[2])
        mask = chosen.are_chosen[rows, None, None]
        mixed.append(scaled_dot_product_attention(query[rows].unsqueeze(1), seen, seen, attn_mask=mask).squeeze(1))
    return cache.value_part(torch.cat(mixed))


def _choose(query: IndexQuery, index: StoredHeads, group: Group, most: int) -> tuple[Tensor, Tensor]:
    """Slots and mask of a group's rows, each [rows, most]; some queries of all sequences at a time."""
    num_sequences, context = group.slots.shape
    if context <= most:
        slots, are_chosen = _placed(group.slots, group.visible, most)
    else:
        keys = index.gather(0, group.slots.flatten()).floats(query.heads.dtype).float().view(*group.slots.shape, -1)
        num_queries = max(1, MAX_PRODUCTS // (num_sequences * context * query.heads.shape[1]))
        parts = []
        for rows, visible in zip(
            torch.split(group.rows, num_queries, 1), torch.split(group.visible, num_queries, 1), strict=True
        ):
            scores = _scores(query, keys, rows).masked_fill_(~visible, float("-inf"))
            parts.append(_placed(group.slots, _best(scores, visible, most), most))
        slots, are_chosen = (torch.cat(each, 1) for each in zip(*parts, strict=True))
    return slots.flatten(0, 1)[group.kept], are_chosen.flatten(0, 1)[group.kept]


def _scores(query: IndexQuery, keys: Tensor, rows: Tensor) -> Tensor:
    """float32 [sequences, queries, context] of rows int64 [sequences, queries] with keys float32 [sequences, context,
    index_dim], but for a positive factor. A score that is no number is the largest: attention then shows it."""
    heads, weights = query.heads[rows].float(), query.weights[rows].float()
    products = (heads.flatten(1, 2) @ keys.transpose(1, 2)).relu_().view(*heads.shape[:3], -1)
    scores = (weights.unsqueeze(2) @ products).squeeze(2)
    return scores.nan_to_num_(float("inf"), float("inf"), float("-inf"))


def _best(scores: Tensor, visible: Tensor, most: int) -> Tensor:
    """bool, the shape of scores [..., context]: the `most` largest of the visible ones, or all."""
    least = scores.topk(most).values[..., -1:]
    above, level = scores > least, (scores == least) & visible
    return above | (level & (level.cumsum(-1) <= most - above.sum(-1, keepdim=True)))


def _placed(slots: Tensor, chosen: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """`slots` [sequences, context] where `chosen` [sequences, queries, context] is True, at most `most` of a query,
    side by side [sequences, queries, most]; and a mask of the same shape, False behind them."""
    place = torch.where(chosen, chosen.cumsum(-1) - 1, most)
    found = slots[:, None, :1].expand(*chosen.shape[:2], most + 1)
    found = found.scatter(2, place, slots.unsqueeze(1).expand_as(place))[..., :most]
    return found, torch.arange(most, device=slots.device) < chosen.sum(-1, keepdim=True)
