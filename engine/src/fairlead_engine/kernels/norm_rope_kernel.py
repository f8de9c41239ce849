"""Query and key heads normalised where wanted and rotated, in one pass: Triton.

Reads and writes each query and key head once, and a row of cosines and sines per token; values stay where they are.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairlead_engine.kernels.norm_rope import HeadNorm


@triton.jit  # type: ignore[untyped-decorator]
def turn_kernel(  # type: ignore[no-untyped-def]
    query,
    key,
    heads,
    cosines,
    sines,
    query_weight,
    key_weight,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Program (token, tile of query and key heads)."""
    token = tl.program_id(0).to(tl.int64)
    HALF: tl.constexpr = HEAD_DIM // 2
    head = tl.program_id(1) * TILE_HEADS + tl.arange(0, TILE_HEADS)
    d = tl.arange(0, PADDED_HALF)
    is_query, is_dim = head < NUM_HEADS, d < HALF
    is_in = (head < NUM_HEADS + NUM_KV_HEADS)[:, None] & is_dim[None, :]
    source = heads + token * (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM + head[:, None] * HEAD_DIM + d[None, :]
    low = tl.load(source, mask=is_in, other=0.0)
    high = tl.load(source + HALF, mask=is_in, other=0.0)
    if HAS_NORM:
        wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
        squares = tl.sum(wide_low * wide_low + wide_high * wide_high, 1)
        scale = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        is_of_query = is_query[:, None] & is_dim[None, :]
        is_of_key = ~is_query[:, None] & is_dim[None, :]
        place = tl.zeros_like(head)[:, None] + d[None, :]
        low_weight = tl.load(query_weight + place, mask=is_of_query, other=0.0).to(tl.float32)
        low_weight += tl.load(key_weight + place, mask=is_of_key, other=0.0).to(tl.float32)
        high_weight = tl.load(query_weight + HALF + place, mask=is_of_query, other=0.0).to(tl.float32)
        high_weight += tl.load(key_weight + HALF + place, mask=is_of_key, other=0.0).to(tl.float32)
        low = (wide_low * scale * low_weight).to(low.dtype)
        high = (wide_high * scale * high_weight).to(high.dtype)
    turn = token * HEAD_DIM + d
    low_cosine = tl.load(cosines + turn, mask=is_dim, other=0.0).to(tl.float32)[None, :]
    low_sine = tl.load(sines + turn, mask=is_dim, other=0.0).to(tl.float32)[None, :]
    high_cosine = tl.load(cosines + turn + HALF, mask=is_dim, other=0.0).to(tl.float32)[None, :]
    high_sine = tl.load(sines + turn + HALF, mask=is_dim, other=0.0).to(tl.float32)[None, :]
    wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
    turned_low = (wide_low * low_cosine + wide_high * low_sine).to(query.dtype.element_ty)
    turned_high = (wide_high * high_cosine + wide_low * high_sine).to(query.dtype.element_ty)
    query_place = query + (token * NUM_HEADS + head[:, None]) * HEAD_DIM + d[None, :]
    tl.store(query_place, turned_low, mask=is_in & is_query[:, None])
    tl.store(query_place + HALF, turned_high, mask=is_in & is_query[:, None])
    key_place = key + (token * NUM_KV_HEADS + head[:, None] - NUM_HEADS) * HEAD_DIM + d[None, :]
    tl.store(key_place, turned_low, mask=is_in & ~is_query[:, None])
    tl.store(key_place + HALF, turned_high, mask=is_in & ~is_query[:, None])


def norm_rope(
    heads: Tensor, num_kv_heads: int, cosines: Tensor, sines: Tensor, norm: HeadNorm | None
) -> tuple[Tensor, Tensor, Tensor]:
    """As `kernels.norm_rope.norm_rope`."""
    num_tokens, num_all, head_dim = heads.shape
    num_heads = num_all - 2 * num_kv_heads
    query = torch.empty((num_tokens, num_heads, head_dim), dtype=heads.dtype, device=heads.device)
    key = torch.empty((num_tokens, num_kv_heads, head_dim), dtype=heads.dtype, device=heads.device)
    if num_tokens:
        tile_heads = min(16, triton.next_power_of_2(num_heads + num_kv_heads))
        turn_kernel[(num_tokens, triton.cdiv(num_heads + num_kv_heads, tile_heads))](
            query,
            key,
            heads,
            cosines,
            sines,
            query if norm is None else norm.query,
            key if norm is None else norm.key,
            0.0 if norm is None else norm.eps,
            NUM_HEADS=num_heads,
            NUM_KV_HEADS=num_kv_heads,
            HEAD_DIM=head_dim,
            PADDED_HALF=triton.next_power_of_2(head_dim // 2),
            TILE_HEADS=tile_heads,
            HAS_NORM=norm is not None,
        )
    return query, key, heads[:, num_heads + num_kv_heads :]
