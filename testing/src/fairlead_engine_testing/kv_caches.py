"""Caches of keys and values in tests: nothing in them, or what a format makes of heads, and attention over them."""

from typing import Any

import torch
from torch import Tensor

from fairlead_engine.kernels.attention.backend import AttentionBackend, LayerCache
from fairlead_engine.kernels.attention.scoring import PLAIN, Scoring
from fairlead_engine.kernels.attention.stored_heads import quantize_heads
from fairlead_engine.kernels.norm_rope import HeadTurn


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
