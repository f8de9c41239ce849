"""Attention of whole prompts: each token sees its whole prompt, and nothing is kept.

Prompts of similar length are attended together, padded to the longest of them, with less than half padding. Knows no
cache, no blocks and no order of tokens.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.staging import to_device


class PromptGroup(NamedTuple):
    """Prompts that are attended together."""

    rows: Tensor
    """int64 [prompts, longest]: their rows; padding repeats the last."""
    mask: Tensor | None
    """bool [prompts, 1, 1, longest]: whether it is no padding; None = all."""
    own: Tensor
    """int64 [tokens]: places of these among `rows`, flattened."""
    targets: Tensor
    """The row of each."""


def group_prompts(lengths: npt.NDArray[np.int64], device: torch.device) -> list[PromptGroup]:
    """`lengths`: of each prompt; their rows come one after the other."""
    starts = np.cumsum(lengths) - lengths
    sizes = np.array([int(length - 1).bit_length() for length in lengths])
    groups = []
    for size in np.unique(sizes):
        counts = lengths[sizes == size]
        offsets = np.arange(counts.max())
        rows = starts[sizes == size][:, None] + np.minimum(offsets, counts[:, None] - 1)
        is_own = offsets < counts[:, None]
        own = np.flatnonzero(is_own)
        mask = None if is_own.all() else to_device(is_own[:, None, None, :].copy(), device)
        groups.append(
            PromptGroup(to_device(rows, device), mask, to_device(own, device), to_device(rows.ravel()[own], device))
        )
    return groups


def attend_whole(query: Tensor, key: Tensor, value: Tensor, groups: list[PromptGroup]) -> Tensor:
    """softmax(query · keys / sqrt(head_dim)) · values within each prompt: [tokens, heads, head_dim] each →
    [tokens, heads x head_dim]."""
    attended = query.new_empty(query.shape[0], query.shape[1] * query.shape[2])
    for group in groups:
        queries, keys, values = (each[group.rows].transpose(1, 2) for each in (query, key, value))
        found = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=group.mask)
        attended.index_copy_(0, group.targets, found.transpose(1, 2).flatten(2).flatten(0, 1)[group.own])
    return attended
