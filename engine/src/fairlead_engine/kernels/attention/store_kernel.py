"""A step's keys and values to their slots of the cache, in one launch: Triton. Reads and writes each once."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def store_kernel(  # type: ignore[no-untyped-def]
    keys, values, key, value, slot_mapping, key_stride, value_stride, SIZE: tl.constexpr, PADDED_SIZE: tl.constexpr
):
    """Program (token)."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    column = tl.arange(0, PADDED_SIZE)
    is_in = column < SIZE
    tl.store(keys + slot * SIZE + column, tl.load(key + token * key_stride + column, mask=is_in), mask=is_in)
    tl.store(values + slot * SIZE + column, tl.load(value + token * value_stride + column, mask=is_in), mask=is_in)


def store(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
    """key and value [tokens, kv_heads, head_dim], each row's heads side by side, into keys and values [blocks,
    block_size, kv_heads, head_dim], at the slots of slot_mapping int64 [tokens]."""
    size = key.shape[1] * key.shape[2]
    store_kernel[(len(key),)](
        keys,
        values,
        key,
        value,
        slot_mapping,
        key.stride(0),
        value.stride(0),
        SIZE=size,
        PADDED_SIZE=triton.next_power_of_2(size),
    )
