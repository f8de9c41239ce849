"""Caches of keys and values as attention finds them in tests: nothing in them, or what a format makes of heads."""

import torch
from torch import Tensor

from fairlead_engine.kernels.attention.backend import LayerCache
from fairlead_engine.kernels.attention.stored_heads import quantize_heads


def spoil(cache: LayerCache) -> None:
    """Whatever is read of it that nobody wrote there spoils what comes out."""
    for heads in (cache.keys, cache.values):
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
