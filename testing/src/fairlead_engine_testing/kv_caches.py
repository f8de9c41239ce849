"""Attention in tests: a step written as lists, and caches of keys and values, empty or in the format of heads."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlead_engine.kernels.attention.backend import AttentionBackend, DeviceBatch, LayerCache, NewBlocks
from fairlead_engine.kernels.attention.scoring import PLAIN, Scoring
from fairlead_engine.kernels.attention.stored_heads import quantize_heads
from fairlead_engine.kernels.norm_rope_store import HeadTurn


def device_batch(
    slots: list[int],
    num_queries: list[int],
    context_lens: list[int],
    block_tables: list[list[int]],
    num_known: list[int] | None = None,
    device: torch.device | None = None,
) -> DeviceBatch:
    """`num_known`: how many blocks of each table earlier steps have told of; None = these are their first."""
    known = num_known or [0] * len(slots)
    tables = zip(slots, block_tables, known, strict=True)
    new_blocks = [NewBlocks(slot, first, table[first:]) for slot, table, first in tables if first < len(table)]
    shares = list(zip(slots, num_queries, context_lens, strict=True))
    row_slots = torch.tensor([slot for slot, queries, _ in shares for _ in range(queries)], device=device)
    positions = torch.tensor([row for _, queries, end in shares for row in range(end - queries, end)], device=device)
    numbers = (np.array(slots), np.array(num_queries), np.array(context_lens))
    return DeviceBatch(*numbers, row_slots, positions, new_blocks)


def spoil(cache: LayerCache) -> None:
    """Whatever is read of it that nobody wrote there spoils what comes out."""
    for heads in cache.stored:
        if heads.scales is None:
            heads.numbers.fill_(float("nan"))
        else:
            heads.numbers.view(torch.uint8).fill_(1)
            heads.scales.fill_(float("nan"))


def as_stored(heads: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Float heads [..., head_dim] as they come back from a cache of this format; None = as they are."""
    if dtype is None:
        return heads
    numbers, scales = quantize_heads(heads, dtype)
    return numbers.float() * scales.unsqueeze(-1)


def attention_written_out(
    query: Tensor, key: Tensor, value: Tensor, seen: Sequence[Sequence[int]], scoring: Scoring = PLAIN
) -> Tensor:
    """In float64, of queries that see these tokens, in order: [queries, heads, dim]."""
    (num_queries, num_heads, head_dim), group = query.shape, query.shape[1] // key.shape[1]
    query, key, value = query.double(), key.double(), value.double()
    rows = []
    for row, tokens in enumerate(seen):
        near = list(tokens)
        if scoring.window:
            near = near[(len(near) - 1) // scoring.window * scoring.window if scoring.is_aligned else -scoring.window :]
        for head in range(num_heads):
            scores = key[near, head // group] @ query[row, head] / math.sqrt(head_dim)
            if scoring.soft_cap:
                scores = scoring.soft_cap * torch.tanh(scores / scoring.soft_cap)
            sink = 0.0 if scoring.sinks is None else scoring.sinks[head].double().exp()
            rows.append(scores.exp() @ value[near, head // group] / (scores.exp().sum() + sink))
    return torch.stack(rows).view(num_queries, num_heads, -1)


def side_by_side(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, HeadTurn]:
    """Each [tokens, heads, head_dim], as a fused projection has them, and a turn that leaves them as they are."""
    heads = torch.cat((query, key, value), 1)
    cosines = torch.ones(len(heads), 1, heads.shape[2], dtype=heads.dtype, device=heads.device)
    return heads, HeadTurn(key.shape[1], value.shape[1], cosines, torch.zeros_like(cosines), None)


def forward(
    backend: AttentionBackend[Any, Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache: LayerCache,
    metadata: Any,
    scoring: Scoring = PLAIN,
) -> Tensor:
    """Stores a step's keys and values and attends to them, without normalising or turning heads."""
    stored = backend.store(*side_by_side(query, key, value), cache, metadata)
    return backend.attend(stored, cache, metadata, scoring)
