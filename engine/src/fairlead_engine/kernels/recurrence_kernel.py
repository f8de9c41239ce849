"""One token of each sequence through a recurrent layer, states in place: Triton. Two launches, the convolution and the
recurrence; prompts are computed in chunks by others (`stretches_kernel.py`).

A program of the recurrence has a tile of columns of one head's matrix, which no other program needs: what the state
knows under a key, and what a query finds, are sums over rows.

Bytes: each matrix is read once and written once, 8 x heads x key_dim x value_dim a sequence: 4 MiB in a layer of
Qwen3-Next (32 heads of 128 x 128), beside which tokens and the convolution's inputs are some KiB. Operations: seven per
element of the matrix, five without strengths: one a byte, i.e. the memory's time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE_CHANNELS = 512
_MOST_COLUMNS = 32


@triton.jit  # type: ignore[untyped-decorator]
def convolve_kernel(  # type: ignore[no-untyped-def]
    output, x, weight, bias, inputs, rows, x_stride, CHANNELS: tl.constexpr, LENGTH: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Program (sequence, tile of channels). `LENGTH`: inputs that are kept."""
    sequence = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_in = channel < CHANNELS
    kept = inputs + tl.load(rows + sequence) * LENGTH * CHANNELS + channel
    new = tl.load(x + sequence * x_stride + channel, mask=is_in, other=0.0)
    summed = tl.zeros([TILE], tl.float32)
    for place in tl.static_range(LENGTH):
        before = tl.load(kept + place * CHANNELS, mask=is_in, other=0.0)
        summed += before.to(tl.float32) * tl.load(weight + place * CHANNELS + channel, mask=is_in, other=0.0)
        if place > 0:
            tl.store(kept + (place - 1) * CHANNELS, before, mask=is_in)
    summed += new.to(tl.float32) * tl.load(weight + LENGTH * CHANNELS + channel, mask=is_in, other=0.0)
    if LENGTH > 0:
        tl.store(kept + (LENGTH - 1) * CHANNELS, new, mask=is_in)
    if HAS_BIAS:
        summed += tl.load(bias + channel, mask=is_in, other=0.0)
    if ACTIVATES:
        summed *= tl.sigmoid(summed)
    tl.store(output + sequence * CHANNELS + channel, summed.to(output.dtype.element_ty), mask=is_in)


@triton.jit  # type: ignore[untyped-decorator]
def recur_kernel(  # type: ignore[no-untyped-def]
    output, query, key, value, decay, strength, matrices, rows, query_stride, key_stride, value_stride, decay_stride,
    strength_stride, HEADS: tl.constexpr, EACH: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    PADDED_KEY: tl.constexpr, TILE: tl.constexpr, HAS_STRENGTH: tl.constexpr,
):  # fmt: skip
    """Program (sequence, head, tile of columns). `EACH`: heads of a key."""
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    k, v = tl.arange(0, PADDED_KEY), tl.program_id(2) * TILE + tl.arange(0, TILE)
    is_key, is_value = k < KEY_DIM, v < VALUE_DIM
    is_in = is_key[:, None] & is_value[None, :]
    matrix = matrices + (tl.load(rows + sequence) * HEADS + head) * KEY_DIM * VALUE_DIM
    places = matrix + k[:, None] * VALUE_DIM + v[None, :]
    of_key = (head // EACH) * KEY_DIM + k
    asked = tl.load(query + sequence * query_stride + of_key, mask=is_key, other=0.0)
    under = tl.load(key + sequence * key_stride + of_key, mask=is_key, other=0.0)
    change = tl.load(value + sequence * value_stride + head * VALUE_DIM + v, mask=is_value, other=0.0)
    state = tl.load(places, mask=is_in, other=0.0)
    state *= tl.exp(tl.load(decay + sequence * decay_stride + head))
    if HAS_STRENGTH:
        share = tl.load(strength + sequence * strength_stride + head)
        change = share * (change - tl.sum(state * under[:, None], 0))
    state += under[:, None] * change[None, :]
    tl.store(places, state, mask=is_in)
    found = tl.sum(state * asked[:, None], 0)
    tl.store(output + (sequence * HEADS + head) * VALUE_DIM + v, found, mask=is_value)


def convolve_one(
    x: Tensor, weight: Tensor, bias: Tensor | None, inputs: Tensor, rows: Tensor, *, activates: bool = True
) -> Tensor:
    number, channels = x.shape
    output = torch.empty((number, channels), dtype=x.dtype, device=x.device)
    if number:
        x = x if x.stride(1) == 1 else x.contiguous()
        convolve_kernel[(number, triton.cdiv(channels, _TILE_CHANNELS))](
            output, x, weight.contiguous(), weight if bias is None else bias, inputs, rows, x.stride(0),
            CHANNELS=channels, LENGTH=inputs.shape[1], HAS_BIAS=bias is not None, ACTIVATES=activates,
            TILE=_TILE_CHANNELS,
        )  # fmt: skip
    return output


def recur_one(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, strength: Tensor | None, matrices: Tensor, rows: Tensor
) -> Tensor:
    number, heads, value_dim = value.shape
    key_heads, key_dim = key.shape[1:]
    output = torch.empty((number, heads, value_dim), dtype=value.dtype, device=value.device)
    if number:
        query, key, value = (with_whole_rows(each) for each in (query, key, value))
        decay, strength = with_whole_rows(decay), None if strength is None else with_whole_rows(strength)
        given = decay if strength is None else strength
        tile = min(_MOST_COLUMNS, triton.next_power_of_2(value_dim))
        recur_kernel[(number, heads, triton.cdiv(value_dim, tile))](
            output, query, key, value, decay, given, matrices, rows, query.stride(0), key.stride(0), value.stride(0),
            decay.stride(0), given.stride(0), HEADS=heads, EACH=heads // key_heads, KEY_DIM=key_dim,
            VALUE_DIM=value_dim, PADDED_KEY=triton.next_power_of_2(key_dim), TILE=tile,
            HAS_STRENGTH=strength is not None,
        )  # fmt: skip
    return output


def with_whole_rows(x: Tensor) -> Tensor:
    """The same [rows, ...], with each row's numbers beside each other; rows may lie apart."""
    return x if x[0].is_contiguous() else x.contiguous()
