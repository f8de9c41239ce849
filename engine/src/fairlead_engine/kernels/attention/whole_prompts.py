"""Attention of whole prompts: each token sees the whole prompt, or the tokens near by, and nothing is kept.

Prompts of similar length are attended together, padded to the longest, with less than half padding. Within a reach
long prompts are cut into blocks of queries, each with the keys around: time in proportion to the length, not to the
square. Knows no cache and no order of tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.staging import to_device

Reach = int | None
"""The most places between two tokens that see each other; None = all tokens of a prompt do."""
_LEAST_BLOCK = 64
"""Fewest queries of a block: products of few rows cost more than the masked part of larger products."""


class PromptGroup(NamedTuple):
    """Prompts, or blocks of prompts, that are attended together."""

    rows: Tensor
    """int64 [blocks, longest]: rows of the queries; padding repeats a prompt's last row."""
    keys: Tensor
    """int64 [blocks, keys]: rows of the keys; `rows` where a block is a whole prompt."""
    mask: Tensor | None
    """bool [blocks, 1, 1 or longest, keys]: whether a key is seen; None = all are."""
    own: Tensor
    """int64 [tokens]: places of these among `rows`, flattened."""
    targets: Tensor
    """The row of each."""


Groups = Mapping[Reach, list[PromptGroup]]
"""A step's prompts, for layers of each reach."""


def group_prompts(lengths: npt.NDArray[np.int64], device: torch.device, reach: Reach = None) -> list[PromptGroup]:
    """`lengths`: of each prompt; their rows come one after the other."""
    starts = np.cumsum(lengths) - lengths
    sizes = np.array([int(length - 1).bit_length() for length in lengths])
    return [_group(starts[sizes == size], lengths[sizes == size], device, reach) for size in np.unique(sizes)]


def group_by_reach(lengths: npt.NDArray[np.int64], device: torch.device, reaches: Iterable[Reach]) -> Groups:
    """The groups for each reach; a reach longer than all prompts shares the groups of None."""
    whole = group_prompts(lengths, device)
    longest = int(lengths.max())
    return {
        reach: whole if reach is None or reach >= longest - 1 else group_prompts(lengths, device, reach)
        for reach in reaches
    }


def _group(
    starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], device: torch.device, reach: Reach
) -> PromptGroup:
    longest = int(counts.max())
    block, before, span = longest, 0, longest
    if reach is not None and longest > max(reach, _LEAST_BLOCK) + 2 * reach:
        block, before = max(reach, _LEAST_BLOCK), reach
        span = block + 2 * reach
    num_blocks = -(-counts // block)
    firsts = block * (np.arange(num_blocks.sum()) - np.repeat(np.cumsum(num_blocks) - num_blocks, num_blocks))
    starts, counts, firsts = (
        each[:, None] for each in (np.repeat(starts, num_blocks), np.repeat(counts, num_blocks), firsts)
    )
    queries = firsts + np.arange(block)
    keys = firsts - before + np.arange(span)
    own = np.flatnonzero(queries < counts)
    rows = starts + np.minimum(queries, counts - 1)
    is_seen = ((keys >= 0) & (keys < counts))[:, None, None, :]
    if reach is not None and longest > reach + 1:
        # A padding query may have no key left, and a softmax over no key is NaN: `own` leaves such rows out.
        is_seen = is_seen & (abs(np.arange(block)[:, None] + before - np.arange(span)) <= reach)
    placed = to_device(rows, device)
    return PromptGroup(
        rows=placed,
        keys=to_device(starts + np.clip(keys, 0, counts - 1), device) if before else placed,
        mask=None if is_seen.all() else to_device(is_seen, device),
        own=to_device(own, device),
        targets=to_device(rows.ravel()[own], device),
    )


def attend_whole(query: Tensor, key: Tensor, value: Tensor, groups: Sequence[PromptGroup]) -> Tensor:
    """softmax(query · keys / sqrt(head_dim)) · values within each prompt: queries [tokens, heads, head_dim], keys and
    values [tokens, kv_heads, head_dim], several query heads for each → [tokens, heads x head_dim]."""
    if (each := query.shape[1] // key.shape[1]) > 1:  # torch's fast products for GPUs take no mask with fewer heads
        key, value = key.repeat_interleave(each, 1), value.repeat_interleave(each, 1)
    attended = query.new_empty(query.shape[0], query.shape[1] * query.shape[2])
    for group in groups:
        queries, keys, values = (
            heads[rows].transpose(1, 2) for heads, rows in ((query, group.rows), (key, group.keys), (value, group.keys))
        )
        found = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=group.mask)
        attended.index_copy_(0, group.targets, found.transpose(1, 2).flatten(2).flatten(0, 1)[group.own])
    return attended
