"""Query and key heads normalised if wanted and rotated, keys and values to their slots of the cache, in one pass:
Triton.

Bytes: each head is read once; queries are written once, keys and values once in the cache's format, with 4 bytes of
scale for each head in 8 bits; a row of cosines and sines per token. For a token of 32 query heads and 8 key heads of
128 in bfloat16: 24 KiB, instead of 28 in two passes. Operations: about ten per number: the memory's time, or one
launch's.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairlead_engine.kernels import norm_rope_store as in_torch
from fairlead_engine.kernels.attention.stored_heads import LARGEST, SMALLEST_SCALE, StoredHeads
from fairlead_engine.kernels.norm_rope_store import HeadTurn
from fairlead_engine.kernels.rounded_rows_kernel import nearest

_SMALLEST_SCALE: tl.constexpr = tl.constexpr(SMALLEST_SCALE)


@triton.jit  # type: ignore[untyped-decorator]
def scales_of(low, high, LARGEST: tl.constexpr):  # type: ignore[no-untyped-def]
    """`quantize_heads`' scales [heads] of two halves of heads, each float32 [heads, half]."""
    highest = tl.maximum(tl.max(tl.abs(low), 1), tl.max(tl.abs(high), 1))
    spoilt = tl.sum(low - low, 1) + tl.sum(high - high, 1)  # 0, or NaN where some number is not finite
    return tl.maximum(highest * (1 / LARGEST), _SMALLEST_SCALE) + spoilt


@triton.jit  # type: ignore[untyped-decorator]
def quantized(wide, scales, IS_INTEGER: tl.constexpr):  # type: ignore[no-untyped-def]
    """`quantize_heads`' numbers of float32 [heads, half], in float32 but representable in the format."""
    numbers = tl.div_rn(wide, tl.broadcast_to(scales[:, None], wide.shape))
    return nearest(numbers, IS_INTEGER)


@triton.jit  # type: ignore[untyped-decorator]
def normed(low, high, low_weight, high_weight, eps, HEAD_DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Two halves of heads [heads, half], normalised together in float32."""
    wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
    squares = tl.sum(wide_low * wide_low + wide_high * wide_high, 1)
    scale = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
    return (wide_low * scale * low_weight).to(low.dtype), (wide_high * scale * high_weight).to(high.dtype)


@triton.jit  # type: ignore[untyped-decorator]
def norm_rope_store_kernel(  # type: ignore[no-untyped-def]
    query,
    keys,
    key_scales,
    values,
    value_scales,
    heads,
    cosines,
    sines,
    query_weight,
    key_weight,
    slot_mapping,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    NORM_IS_LAST: tl.constexpr,
    LARGEST: tl.constexpr,
    IS_INTEGER: tl.constexpr,
):
    """Program (token, tile of heads)."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    HALF: tl.constexpr = HEAD_DIM // 2
    head = tl.program_id(1) * TILE_HEADS + tl.arange(0, TILE_HEADS)
    d = tl.arange(0, PADDED_HALF)
    is_dim = d < HALF
    is_query = head < NUM_HEADS
    is_key = (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS)
    is_value = (head >= NUM_HEADS + NUM_KV_HEADS) & (head < NUM_HEADS + 2 * NUM_KV_HEADS)
    is_in = (head < NUM_HEADS + 2 * NUM_KV_HEADS)[:, None] & is_dim[None, :]
    source = heads + (token * (NUM_HEADS + 2 * NUM_KV_HEADS) + head[:, None]) * HEAD_DIM + d[None, :]
    low = tl.load(source, mask=is_in, other=0.0)
    high = tl.load(source + HALF, mask=is_in, other=0.0)
    normed_low, normed_high = low, high
    if HAS_NORM:
        is_of_query = is_query[:, None] & is_dim[None, :]
        is_of_key = is_key[:, None] & is_dim[None, :]
        place = tl.zeros_like(head)[:, None] + d[None, :]
        low_weight = tl.load(query_weight + place, mask=is_of_query, other=0.0).to(tl.float32)
        low_weight += tl.load(key_weight + place, mask=is_of_key, other=0.0).to(tl.float32)
        high_weight = tl.load(query_weight + HALF + place, mask=is_of_query, other=0.0).to(tl.float32)
        high_weight += tl.load(key_weight + HALF + place, mask=is_of_key, other=0.0).to(tl.float32)
        if not NORM_IS_LAST:
            normed_low, normed_high = normed(low, high, low_weight, high_weight, eps, HEAD_DIM)
    turn = token * HEAD_DIM + d
    low_cosine = tl.load(cosines + turn, mask=is_dim, other=0.0).to(tl.float32)[None, :]
    low_sine = tl.load(sines + turn, mask=is_dim, other=0.0).to(tl.float32)[None, :]
    high_cosine = tl.load(cosines + turn + HALF, mask=is_dim, other=0.0).to(tl.float32)[None, :]
    high_sine = tl.load(sines + turn + HALF, mask=is_dim, other=0.0).to(tl.float32)[None, :]
    wide_low, wide_high = normed_low.to(tl.float32), normed_high.to(tl.float32)
    turned_low = (wide_low * low_cosine + wide_high * low_sine).to(low.dtype)
    turned_high = (wide_high * high_cosine + wide_low * high_sine).to(high.dtype)
    if HAS_NORM and NORM_IS_LAST:
        turned_low, turned_high = normed(turned_low, turned_high, low_weight, high_weight, eps, HEAD_DIM)

    query_place = query + (token * NUM_HEADS + head[:, None]) * HEAD_DIM + d[None, :]
    tl.store(query_place, turned_low, mask=is_in & is_query[:, None])
    tl.store(query_place + HALF, turned_high, mask=is_in & is_query[:, None])

    new_low = tl.where(is_value[:, None], low, turned_low).to(tl.float32)
    new_high = tl.where(is_value[:, None], high, turned_high).to(tl.float32)
    stored_head = slot * NUM_KV_HEADS + head - NUM_HEADS - tl.where(is_value, NUM_KV_HEADS, 0)
    if LARGEST > 0:
        scales = scales_of(new_low, new_high, LARGEST)
        tl.store(key_scales + stored_head, scales, mask=is_key)
        tl.store(value_scales + stored_head, scales, mask=is_value)
        new_low, new_high = quantized(new_low, scales, IS_INTEGER), quantized(new_high, scales, IS_INTEGER)
    new_low, new_high = new_low.to(keys.dtype.element_ty), new_high.to(keys.dtype.element_ty)
    place = stored_head[:, None] * HEAD_DIM + d[None, :]
    tl.store(keys + place, new_low, mask=is_in & is_key[:, None])
    tl.store(keys + HALF + place, new_high, mask=is_in & is_key[:, None])
    tl.store(values + place, new_low, mask=is_in & is_value[:, None])
    tl.store(values + HALF + place, new_high, mask=is_in & is_value[:, None])


def norm_rope_store(
    heads: Tensor, turn: HeadTurn, keys: StoredHeads, values: StoredHeads | None, slot_mapping: Tensor
) -> Tensor:
    """As `kernels.norm_rope_store.norm_rope_store`, which computes partly turned heads and shared values."""
    num_tokens, num_all, head_dim = heads.shape
    num_kv_heads, _, cosines, sines, norm = turn
    if values is None or cosines.shape[-1] < head_dim:
        return in_torch.norm_rope_store(heads, turn, keys, values, slot_mapping)
    num_heads = num_all - 2 * num_kv_heads
    query = torch.empty((num_tokens, num_heads, head_dim), dtype=heads.dtype, device=heads.device)
    if num_tokens:
        dtype = keys.numbers.dtype
        tile_heads = min(16, triton.next_power_of_2(num_all))
        norm_rope_store_kernel[(num_tokens, triton.cdiv(num_all, tile_heads))](
            query,
            keys.numbers,
            keys.numbers if keys.scales is None else keys.scales,
            values.numbers,
            values.numbers if values.scales is None else values.scales,
            heads,
            cosines,
            sines,
            query if norm is None else norm.query,
            query if norm is None else norm.key,
            slot_mapping,
            0.0 if norm is None else norm.eps,
            NUM_HEADS=num_heads,
            NUM_KV_HEADS=num_kv_heads,
            HEAD_DIM=head_dim,
            PADDED_HALF=triton.next_power_of_2(head_dim // 2),
            TILE_HEADS=tile_heads,
            HAS_NORM=norm is not None,
            NORM_IS_LAST=norm is not None and norm.is_last,
            LARGEST=LARGEST.get(dtype, 0.0),
            IS_INTEGER=not dtype.is_floating_point,
        )
    return query
