"""From a fused projection to attention's input: heads normalised where wanted, rotated, and stored in the cache."""

from typing import NamedTuple

import torch
from torch import Tensor

from fairlead_engine.kernels.attention.stored_heads import StoredHeads
from fairlead_engine.kernels.rms_norm import rms_norm


class HeadNorm(NamedTuple):
    """Normalisation of each query head and each key head, with weights [head_dim]."""

    query: Tensor
    key: Tensor
    eps: float
    is_last: bool = False
    """Whether heads are turned before."""

    def __call__(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return rms_norm(query, self.query, self.eps), rms_norm(key, self.key, self.eps)


class HeadTurn(NamedTuple):
    """Arguments of `norm_rope` beside the heads."""

    num_kv_heads: int
    num_value_heads: int
    """As many as keys; 0 where values are a part of keys."""
    cosines: Tensor
    sines: Tensor
    norm: HeadNorm | None


def norm_rope(
    heads: Tensor, num_kv_heads: int, num_value_heads: int, cosines: Tensor, sines: Tensor, norm: HeadNorm | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Query [tokens, heads, head_dim], key [tokens, kv_heads, head_dim] and value [tokens, value_heads, head_dim].

    `heads` [tokens, heads + kv_heads + value_heads, head_dim] holds query, key and value heads side by side. The signed
    cosines and sines [tokens, 1, size] rotate the first `size` elements of each head (mostly all, sometimes none) by
    its position: element i is paired with i + size / 2, and the sines of the first half are negative: a rotation is
    three operations.
    """
    num_heads = heads.shape[1] - num_kv_heads - num_value_heads
    turned, sizes = heads[:, : num_heads + num_kv_heads], [num_heads, num_kv_heads]
    if norm is not None and not norm.is_last:
        turned = torch.cat(norm(*torch.split(turned, sizes, dim=1)), dim=1)
    query, key = torch.split(rotate(turned, cosines, sines), sizes, dim=1)
    if norm is not None and norm.is_last:
        query, key = norm(query, key)
    return query, key, heads[:, num_heads + num_kv_heads :]


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Heads [tokens, heads, head_dim], rotated as in `norm_rope`."""
    size = cosines.shape[-1]
    if not size:
        return heads
    if size < heads.shape[-1]:
        return torch.cat((rotate(heads[..., :size], cosines, sines), heads[..., size:]), dim=-1)
    swapped = heads.roll(size // 2, dims=-1)
    return (heads * cosines).addcmul_(swapped, sines)


def norm_rope_store(
    heads: Tensor, turn: HeadTurn, keys: StoredHeads, values: StoredHeads | None, slot_mapping: Tensor
) -> Tensor:
    """The query heads [tokens, heads, head_dim] of `heads` [tokens, all heads, head_dim], as from `norm_rope`; writes
    its keys and values to the slots `slot_mapping` int64 [tokens] of keys and values [blocks, block_size, kv_heads,
    head_dim], where None = values are a part of keys."""
    query, key, value = norm_rope(heads, *turn)
    keys.flatten(0, 1).put(0, slot_mapping, key)
    if values is not None:
        values.flatten(0, 1).put(0, slot_mapping, value)
    return query
