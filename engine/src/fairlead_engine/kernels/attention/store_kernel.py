"""A step's keys and values to their slots of the cache, in one launch: Triton.

Bytes: each number is read once and written once, in 8 bits where the cache has 8, with 4 bytes of scale for each head.
"""

import triton
import triton.language as tl
from torch import Tensor

from fairlead_engine.kernels.attention.stored_heads import LARGEST, SMALLEST_SCALE, StoredHeads

_SMALLEST_SCALE: tl.constexpr = tl.constexpr(SMALLEST_SCALE)
_ROUNDING: tl.constexpr = tl.constexpr(1.5 * 2.0**23)
"""Added to a float32 below 2^22 and taken away again, it leaves the nearest whole number; a multiple of it, the nearest
multiple. So numbers are rounded alike on every device, and in Triton's interpreter, whose own casts to 8-bit floats are
wrong where they carry."""
_EXPONENT: tl.constexpr = tl.constexpr(0x7F800000)
_SMALLEST_NORMAL: tl.constexpr = tl.constexpr(2.0**-6)
_FLOAT_STEP: tl.constexpr = tl.constexpr(2.0**-3)
"""Of e4m3: between numbers from 1 to 2."""


@triton.jit  # type: ignore[untyped-decorator]
def quantized(heads, LARGEST: tl.constexpr, IS_INTEGER: tl.constexpr):  # type: ignore[no-untyped-def]
    """`quantize_heads` of a tile [heads, dim]: the numbers, in float32 but such as their format has, and the scales."""
    wide = heads.to(tl.float32)
    scales = tl.maximum(tl.div_rn(tl.max(tl.abs(wide), 1), LARGEST), _SMALLEST_SCALE)
    scales += tl.sum(wide - wide, 1)  # 0, or NaN where some number is not finite
    numbers = tl.div_rn(wide, tl.broadcast_to(scales[:, None], wide.shape))
    rounding = _ROUNDING
    if not IS_INTEGER:
        power = (numbers.to(tl.int32, bitcast=True) & _EXPONENT).to(tl.float32, bitcast=True)
        rounding *= tl.maximum(power, _SMALLEST_NORMAL) * _FLOAT_STEP
    return (numbers + rounding) - rounding, scales


@triton.jit  # type: ignore[untyped-decorator]
def store_kernel(  # type: ignore[no-untyped-def]
    keys,
    key_scales,
    values,
    value_scales,
    key,
    value,
    slot_mapping,
    key_stride,
    value_stride,
    NUM_KV_HEADS: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    LARGEST: tl.constexpr,
    IS_INTEGER: tl.constexpr,
):
    """Program (token)."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    head, d = tl.arange(0, PADDED_HEADS), tl.arange(0, PADDED_DIM)
    is_head = head < NUM_KV_HEADS
    is_in = is_head[:, None] & (d < HEAD_DIM)[None, :]
    column = head[:, None] * HEAD_DIM + d[None, :]
    place = slot * NUM_KV_HEADS * HEAD_DIM + column
    new_keys = tl.load(key + token * key_stride + column, mask=is_in, other=0.0)
    new_values = tl.load(value + token * value_stride + column, mask=is_in, other=0.0)
    if LARGEST > 0:
        new_keys, scales = quantized(new_keys, LARGEST, IS_INTEGER)
        tl.store(key_scales + slot * NUM_KV_HEADS + head, scales, mask=is_head)
        new_values, scales = quantized(new_values, LARGEST, IS_INTEGER)
        tl.store(value_scales + slot * NUM_KV_HEADS + head, scales, mask=is_head)
    tl.store(keys + place, new_keys.to(keys.dtype.element_ty), mask=is_in)
    tl.store(values + place, new_values.to(values.dtype.element_ty), mask=is_in)


def store(key: Tensor, value: Tensor, keys: StoredHeads, values: StoredHeads, slot_mapping: Tensor) -> None:
    """key and value [tokens, kv_heads, head_dim], each row's heads side by side, into keys and values [blocks,
    block_size, kv_heads, head_dim], at the slots of slot_mapping int64 [tokens]."""
    num_kv_heads, head_dim = key.shape[1:]
    dtype = keys.numbers.dtype
    store_kernel[(len(key),)](
        keys.numbers,
        keys.numbers if keys.scales is None else keys.scales,
        values.numbers,
        values.numbers if values.scales is None else values.scales,
        key,
        value,
        slot_mapping,
        key.stride(0),
        value.stride(0),
        NUM_KV_HEADS=num_kv_heads,
        PADDED_HEADS=triton.next_power_of_2(num_kv_heads),
        HEAD_DIM=head_dim,
        PADDED_DIM=triton.next_power_of_2(head_dim),
        LARGEST=LARGEST.get(dtype, 0.0),
        IS_INTEGER=not dtype.is_floating_point,
    )
