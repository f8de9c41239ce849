"""Stretches of tokens through a recurrent layer, states in place: Triton. Three launches for any number of stretches:
the convolution, and two for the recurrence.

The first launch of the recurrence has a program for each head of each chunk, and computes the part without the state. A
chunk's changes of the state are the solution of (1 + L) changes = wanted, L being strictly lower triangular; the
inverse of 1 + L is made of the inverses of the diagonal's blocks of 2, 4, 8 and more tokens: of 1 + A and 1 + B beside
each other with C below, both inverses with -inverse(B) C inverse(A) below. Outputs are weights times wanted, beside
the values that queries find in the state.

The second launch has a program for each tile of columns of each head of each sequence, which goes through all chunks of
the sequence in order. The state is read and written in the cache's row, in parts of a few rows, so that keys may have
any length. Decays are logarithms; differences of decays are at most zero.

Bytes: a chunk of 32 tokens of a head of 128 x 128 reads queries, keys and values and writes outputs, 64 KiB, and writes
two matrices of 4 KiB for the second launch; each of 8 tiles reads queries once, keys twice and a part of the state
twice, 64 KiB, from the L2 cache: for 8192 tokens of Qwen3-Next (32 heads) 0.6 GiB and 4 GiB. Operations: 150,000 a
token and head, each product of float32 as three of tensor cores: 39 billion for these tokens, 60 a byte from memory. A
single prompt's time is the chain of 256 chunks, each after the chunk before; two launches replace some thousand.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairlead_engine.kernels.recurrence_kernel import with_whole_rows
from fairlead_engine.kernels.stretches import TILE_TOKENS, Stretches

_TILE_CHANNELS = 64
_PART, _WRITTEN_PART = 16, 64
"""Rows of the state that are read at a time for queries and keys, and to be changed."""
_FEW_COLUMNS, _MANY_COLUMNS = 16, 32
_MANY_PROGRAMS = 256
"""Programs from which on tiles have `_MANY_COLUMNS`: the largest GPUs are occupied, and queries and keys are read half
as often. With strengths the tiles stay small, for want of registers."""
_LEVELS = TILE_TOKENS.bit_length() - 1
"""Doublings from a block of one token to a whole chunk."""
_LAUNCH = {"num_warps": 2, "num_stages": 3}
"""Of the recurrence's kernels: a product of 32 rows occupies two warps, and four would compute everything twice."""


@triton.jit(do_not_specialize_on_alignment=["sequences", "copies", "tiles"])  # type: ignore[untyped-decorator]
def convolve_stretches_kernel(  # type: ignore[no-untyped-def]
    output, x, weight, bias, inputs, sequences, copies, tiles, x_stride, CHANNELS: tl.constexpr,
    LENGTH: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATES: tl.constexpr, TOKENS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Program (tile of tokens, tile of channels). `LENGTH`: inputs that are kept. A sequence's first program alone
    reads what was kept, and writes what is kept from now on."""
    tile = tiles + tl.program_id(0) * 2
    sequence, first = sequences + tl.load(tile) * 7, tl.load(tile + 1)
    row, begin, end = tl.load(sequence), tl.load(sequence + 1), tl.load(sequence + 2)
    t, channel = tl.arange(0, TOKENS), tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_channel = channel < CHANNELS
    kept = inputs + row * LENGTH * CHANNELS
    is_in = (t < end - first)[:, None] & is_channel[None, :]
    summed = tl.zeros([TOKENS, TILE], tl.float32)
    for place in tl.static_range(LENGTH + 1):
        back = LENGTH - place
        is_new = (t >= begin - first + back)[:, None]
        source = x + (first - back) * x_stride + (t[:, None] * x_stride + channel[None, :])
        some = tl.load(source, mask=is_in & is_new, other=0.0).to(tl.float32)
        if place < LENGTH:
            before = kept + (first - begin + place) * CHANNELS + (t[:, None] * CHANNELS + channel[None, :])
            some += tl.load(before, mask=is_in & ~is_new, other=0.0).to(tl.float32)
        summed += some * tl.load(weight + place * CHANNELS + channel, mask=is_channel, other=0.0)[None, :]
    if HAS_BIAS:
        summed += tl.load(bias + channel, mask=is_channel, other=0.0)[None, :]
    if ACTIVATES:
        summed *= tl.sigmoid(summed)
    written = output + first * CHANNELS + (t[:, None] * CHANNELS + channel[None, :])
    tl.store(written, summed.to(output.dtype.element_ty), mask=is_in)
    if LENGTH > 0 and first == begin:
        tl.debug_barrier()  # other threads of this program read what is written now
        for number in range(tl.load(sequence + 5), tl.load(sequence + 6)):
            behind, target = tl.load(copies + 2 * number), tl.load(copies + 2 * number + 1)
            for place in tl.static_range(LENGTH):
                at = behind - LENGTH + place
                is_given = is_channel & (at >= begin)
                last = tl.load(x + at * x_stride + channel, mask=is_given, other=0.0)
                place_before = kept + (LENGTH + at - begin) * CHANNELS + channel
                last += tl.load(place_before, mask=is_channel & ~is_given, other=0.0)
                tl.store(inputs + (target * LENGTH + place) * CHANNELS + channel, last, mask=is_channel)


@triton.jit(do_not_specialize_on_alignment=["chunks"])  # type: ignore[untyped-decorator]
def weigh_kernel(  # type: ignore[no-untyped-def]
    weights, inverses, query, key, decay, strength, chunks, query_stride, key_stride, decay_stride, strength_stride,
    HEADS: tl.constexpr, EACH: tl.constexpr, KEY_DIM: tl.constexpr, HAS_STRENGTH: tl.constexpr, TOKENS: tl.constexpr,
    LEVELS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Program (chunk, head). `EACH`: heads of a key."""
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first = tl.load(chunks + 3 * chunk)
    t, k = tl.arange(0, TOKENS), tl.arange(0, PART)
    is_token = t < tl.load(chunks + 3 * chunk + 1) - first
    later, earlier = t[:, None], t[None, :]
    decays = tl.load(decay + first * decay_stride + head + t * decay_stride, mask=is_token, other=0.0)
    total = tl.cumsum(decays, 0)
    faded = tl.exp(tl.where(later >= earlier, total[:, None] - total[None, :], float("-inf")))
    queries_here = query + first * query_stride + (head // EACH) * KEY_DIM
    keys_here = key + first * key_stride + (head // EACH) * KEY_DIM
    square = (chunk * HEADS + head) * TOKENS * TOKENS + (later * TOKENS + earlier)
    if HAS_STRENGTH:
        system = tl.zeros([TOKENS, TOKENS], tl.float32)
        for part in range(0, KEY_DIM, PART):
            is_in = is_token[:, None] & (part + k < KEY_DIM)[None, :]
            keys = tl.load(keys_here + part + (later * key_stride + k[None, :]), mask=is_in, other=0.0)
            system = tl.dot(keys, tl.trans(keys), system, input_precision="tf32x3")
        shares = tl.load(strength + first * strength_stride + head + t * strength_stride, mask=is_token, other=0.0)
        system *= tl.where(later > earlier, shares[:, None] * faded, 0.0)
        inverse = tl.where(later == earlier, 1.0, 0.0) - tl.where(later // 2 == earlier // 2, system, 0.0)
        for level in range(1, LEVELS):
            is_below = (later >> level != earlier >> level) & (later >> (level + 1) == earlier >> (level + 1))
            below = tl.dot(inverse, tl.where(is_below, system, 0.0), input_precision="tf32x3")
            inverse -= tl.dot(below, inverse, input_precision="tf32x3")
        tl.store(inverses + square, inverse)
    weight = tl.zeros([TOKENS, TOKENS], tl.float32)
    for part in range(0, KEY_DIM, PART):
        is_in = is_token[:, None] & (part + k < KEY_DIM)[None, :]
        queries = tl.load(queries_here + part + (later * query_stride + k[None, :]), mask=is_in, other=0.0)
        keys = tl.load(keys_here + part + (later * key_stride + k[None, :]), mask=is_in, other=0.0)
        weight = tl.dot(queries, tl.trans(keys), weight, input_precision="tf32x3")
    weight *= faded
    if HAS_STRENGTH:
        weight = tl.dot(weight, inverse, input_precision="tf32x3")
    tl.store(weights + square, weight)


@triton.jit(do_not_specialize_on_alignment=["sequences", "chunks"])  # type: ignore[untyped-decorator]
def carry_kernel(  # type: ignore[no-untyped-def]
    output, query, key, value, decay, strength, weights, inverses, matrices, sequences, chunks, query_stride,
    key_stride, value_stride, decay_stride, strength_stride, HEADS: tl.constexpr, EACH: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, HAS_STRENGTH: tl.constexpr, TOKENS: tl.constexpr,
    PART: tl.constexpr, WRITTEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Program (sequence, head, tile of columns)."""
    sequence, head = sequences + tl.program_id(0) * 7, tl.program_id(1)
    t, k, w = tl.arange(0, TOKENS), tl.arange(0, PART), tl.arange(0, WRITTEN)
    v = tl.program_id(2) * TILE + tl.arange(0, TILE)
    is_value = v < VALUE_DIM
    SIZE: tl.constexpr = HEADS * KEY_DIM * VALUE_DIM
    row = tl.load(sequence)
    matrix = matrices + row * SIZE + head * KEY_DIM * VALUE_DIM
    of_matrix, of_output = k[:, None] * VALUE_DIM + v[None, :], t[:, None] * (HEADS * VALUE_DIM) + v[None, :]
    for chunk in range(tl.load(sequence + 3), tl.load(sequence + 4)):
        first, keep = tl.load(chunks + 3 * chunk), tl.load(chunks + 3 * chunk + 2)
        is_token = t < tl.load(chunks + 3 * chunk + 1) - first
        is_in = is_token[:, None] & is_value[None, :]
        queries_here = query + first * query_stride + (head // EACH) * KEY_DIM
        keys_here = key + first * key_stride + (head // EACH) * KEY_DIM
        # All that does not depend on the state is under way while the state is read.
        decays = tl.load(decay + first * decay_stride + head + t * decay_stride, mask=is_token, other=0.0)
        changes = value + first * value_stride + head * VALUE_DIM + (t[:, None] * value_stride + v[None, :])
        changes = tl.load(changes, mask=is_in, other=0.0)
        square = (chunk * HEADS + head) * TOKENS * TOKENS + (t[:, None] * TOKENS + t[None, :])
        weight = tl.load(weights + square)
        if HAS_STRENGTH:
            shares = tl.load(strength + first * strength_stride + head + t * strength_stride, mask=is_token, other=0.0)
            inverse = tl.load(inverses + square)
        total = tl.cumsum(decays, 0)
        found = tl.zeros([TOKENS, TILE], tl.float32)
        known = tl.zeros([TOKENS, TILE], tl.float32)
        for part in range(0, KEY_DIM, PART):
            is_key = part + k < KEY_DIM
            is_of_key = is_token[:, None] & is_key[None, :]
            of_state = is_key[:, None] & is_value[None, :]
            state = tl.load(matrix + part * VALUE_DIM + of_matrix, mask=of_state, other=0.0)
            queries = tl.load(queries_here + part + (t[:, None] * query_stride + k[None, :]), mask=is_of_key, other=0.0)
            found = tl.dot(queries, state, found, input_precision="tf32x3")
            if HAS_STRENGTH:
                keys = tl.load(keys_here + part + (t[:, None] * key_stride + k[None, :]), mask=is_of_key, other=0.0)
                known = tl.dot(keys, state, known, input_precision="tf32x3")
        faded = tl.exp(total)[:, None]
        if HAS_STRENGTH:
            changes = shares[:, None] * (changes - faded * known)
        found = tl.dot(weight, changes, faded * found, input_precision="tf32x3")
        tl.store(output + (first * HEADS + head) * VALUE_DIM + of_output, found, mask=is_in)
        if HAS_STRENGTH:
            changes = tl.dot(inverse, changes, input_precision="tf32x3")
        whole = tl.sum(decays, 0)
        changes *= tl.exp(whole - total)[:, None]
        tl.debug_barrier()  # what threads have read is written now, and read by others behind the next one
        for part in range(0, KEY_DIM, WRITTEN):
            is_key = part + w < KEY_DIM
            of_state = is_key[:, None] & is_value[None, :]
            place = matrix + part * VALUE_DIM + (w[:, None] * VALUE_DIM + v[None, :])
            state = tl.load(place, mask=of_state, other=0.0) * tl.exp(whole)
            is_of_key = is_token[:, None] & is_key[None, :]
            keys = tl.load(keys_here + part + (t[:, None] * key_stride + w[None, :]), mask=is_of_key, other=0.0)
            state = tl.dot(tl.trans(keys), changes, state, input_precision="tf32x3")
            tl.store(place, state, mask=of_state)
            tl.store(place + (keep - row) * SIZE, state, mask=of_state & (keep >= 0))
        tl.debug_barrier()


def convolve_stretches(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    inputs: Tensor,
    stretches: Stretches,
    output: Tensor,
    *,
    activates: bool = True,
) -> None:
    channels = x.shape[1]
    x = x if x.stride(1) == 1 else x.contiguous()
    convolve_stretches_kernel[(len(stretches.tiles), triton.cdiv(channels, _TILE_CHANNELS))](
        output, x, weight.contiguous(), weight if bias is None else bias, inputs, stretches.sequences,
        stretches.copies, stretches.tiles, x.stride(0), CHANNELS=channels, LENGTH=inputs.shape[1],
        HAS_BIAS=bias is not None, ACTIVATES=activates, TOKENS=TILE_TOKENS, TILE=_TILE_CHANNELS,
    )  # fmt: skip


def recur_stretches(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    strength: Tensor | None,
    matrices: Tensor,
    stretches: Stretches,
    output: Tensor,
) -> None:
    heads, value_dim = value.shape[1:]
    key_heads, key_dim = key.shape[1:]
    query, key, value, decay = (with_whole_rows(each) for each in (query, key, value, decay))
    given = decay if strength is None else with_whole_rows(strength)
    weights = torch.empty(len(stretches.chunks), heads, TILE_TOKENS, TILE_TOKENS, device=value.device)
    inverses = weights if strength is None else torch.empty_like(weights)
    sizes = {
        "HEADS": heads, "EACH": heads // key_heads, "KEY_DIM": key_dim, "HAS_STRENGTH": strength is not None,
        "TOKENS": TILE_TOKENS, "PART": _PART,
    }  # fmt: skip
    strides = query.stride(0), key.stride(0), value.stride(0), decay.stride(0), given.stride(0)
    weigh_kernel[(len(stretches.chunks), heads)](
        weights, inverses, query, key, decay, given, stretches.chunks, *strides[:2], *strides[3:], LEVELS=_LEVELS,
        **sizes, **_LAUNCH,
    )  # fmt: skip
    has_many = strength is None and heads * triton.cdiv(value_dim, _MANY_COLUMNS) >= _MANY_PROGRAMS
    tile = _MANY_COLUMNS if has_many else _FEW_COLUMNS
    carry_kernel[(len(stretches.sequences), heads, triton.cdiv(value_dim, tile))](
        output, query, key, value, decay, given, weights, inverses, matrices, stretches.sequences, stretches.chunks,
        *strides, VALUE_DIM=value_dim, TILE=tile, WRITTEN=_WRITTEN_PART, **sizes, **_LAUNCH,
    )  # fmt: skip
