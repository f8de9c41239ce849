"""Attention over block tables in one kernel: prefill, chunks and decodes of one step, read in place from the cache.

Written for CUDA in Triton; `block_tables.py` is the same in plain torch. A *tile* is some queries of one sequence, with
all or some of the query heads of a key head side by side: keys and values are read once for the group. A tile walks
over its visible context with the running softmax of FlashAttention (Dao et al., 2022). Where tiles are too few to fill
the device, several programs share a tile's context and a second kernel joins their parts (split KV, as in
FlashDecoding). Values as a part of keys are read once, with the keys. No mask is read for each pair of query and token:
visibility follows from the query's position, in a tree of drafts from a number of 64 bits, and in an image whose tokens
see each other from the image's end (`scoring.py`).

Bytes: keys and values visible to a tile, once: 2 x key heads x head_dim x context in the cache's format, with 4 bytes
of scale for each head in 8 bits; half with values as a part of keys. Queries are read and outputs written once, 4 x
query heads x head_dim a token in 16 bits; with a shared context, each program's part is written and read in float32. A
decode at 2,048 tokens of 8 key heads of 128 in bfloat16 reads 8 MiB. Operations: 4 x query heads x head_dim x context a
query: 4 a byte for that decode with 32 query heads, up to 16 as tensor cores pad them: the memory's time; a prefill's
tile of 64 and more rows does as many a byte: the products' time.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairlead_engine.kernels.attention.backend import DeviceBatch
from fairlead_engine.kernels.attention.scoring import PLAIN, Scoring, TreeRows
from fairlead_engine.kernels.attention.stored_heads import SMALLEST_SCALE, StoredHeads

_UNALIGNED = ["slots", "context_lens", "query_starts", "tile_sequences", "tile_starts"]
"""Arguments whose addresses differ from step to step: multiples of 16 cause no new compilation."""
_LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
_SMALLEST_SCALE: tl.constexpr = tl.constexpr(SMALLEST_SCALE)


@triton.jit
def _num_set(bits):  # type: ignore[no-untyped-def]
    """How many bits of uint64 numbers are set, int32: summed in pairs, fours and bytes, and the bytes by a product."""
    bits = bits - ((bits >> 1) & 0x5555555555555555)
    bits = (bits & 0x3333333333333333) + ((bits >> 2) & 0x3333333333333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0F
    return ((bits * 0x0101010101010101) >> 56).to(tl.int32)


@triton.jit
def _as_half(q, exponent):  # type: ignore[no-untyped-def]
    """Queries of bfloat16 [rows, elements] in float16, multiplied by 2**(142 - exponent) [rows]."""
    factor = ((269 - exponent) << 23).to(tl.float32, bitcast=True)
    return (q.to(tl.float32) * factor[:, None]).to(tl.float16)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["grid_row"], do_not_specialize_on_alignment=_UNALIGNED
)
def paged_attention_kernel(  # type: ignore[no-untyped-def]
    output,
    partial_output,
    partial_max,
    partial_sum,
    query,
    keys,
    key_scales,
    values,
    value_scales,
    table_rows,
    slots,
    context_lens,
    query_starts,
    tile_sequences,
    tile_starts,
    tree_limits,
    tree_bits,
    sinks,
    scale,
    soft_cap,
    query_stride,
    table_stride,
    grid_row,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    REST_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PADDED_REST: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    WINDOW: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    HAS_TREES: tl.constexpr,
):
    """Program (tile, heads that share a key head, split); see `paged_attention` for the arguments. REST_DIM: elements
    of a key before its value; 0 = values are apart."""
    tile, part, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    VALUE_DIM: tl.constexpr = HEAD_DIM - REST_DIM
    kv_head = part * TILE_HEADS // (NUM_HEADS // NUM_KV_HEADS)
    sequence = tl.load(tile_sequences + tile)
    first_row = tl.load(tile_starts + tile)
    end_row = tl.load(query_starts + sequence + 1)
    context = tl.load(context_lens + sequence)
    table = table_rows + tl.load(slots + sequence) * table_stride

    m, n, d = tl.arange(0, TILE_ROWS), tl.arange(0, TILE_TOKENS), tl.arange(0, PADDED_DIM)
    row, head = first_row + m // TILE_HEADS, part * TILE_HEADS + m % TILE_HEADS
    last_row = tl.minimum(first_row + TILE_ROWS // TILE_HEADS, end_row)
    is_query = (m < TILE_ROWS // TILE_HEADS * TILE_HEADS) & (row < end_row)
    position = context - end_row + row
    is_dim = d < VALUE_DIM
    of_query = query + (row.to(tl.int64) * query_stride + head * HEAD_DIM)[:, None]
    q = tl.load(of_query + REST_DIM + d[None, :], mask=is_query[:, None] & is_dim[None, :], other=0.0)
    if REST_DIM > 0:
        r = tl.arange(0, PADDED_REST)
        is_rest = r < REST_DIM
        q_rest = tl.load(of_query + r[None, :], mask=is_query[:, None] & is_rest[None, :], other=0.0)
    factor = tl.zeros([TILE_ROWS], tl.float32) + (scale if HAS_SOFT_CAP else scale * _LOG2E)  # of products with keys
    if keys.dtype.element_ty == tl.float8e4nv and q.dtype == tl.bfloat16:
        # Such keys become float16 in a third of the instructions. A row's largest magnitude becomes 2**15 or more.
        largest = tl.max(tl.abs(q.to(tl.float32)), 1)
        if REST_DIM > 0:
            largest = tl.maximum(largest, tl.max(tl.abs(q_rest.to(tl.float32)), 1))
        exponent = tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, 16)
        if REST_DIM > 0:
            q_rest = _as_half(q_rest, exponent)
        q = _as_half(q, exponent)
        factor *= ((exponent - 15) << 23).to(tl.float32, bitcast=True)

    # What the tile's queries see between them, and this program's share of it.
    visible_end = context - end_row + last_row
    visible_start = visible_end * 0
    if HAS_TREES:
        limit = tl.load(tree_limits + row, mask=is_query, other=1).to(tl.int32)
        bits = tl.load(tree_bits + row, mask=is_query, other=0).to(tl.uint64, bitcast=True)
        position = tl.where(bits == 0, position, limit + _num_set(bits) - 1)
        visible_end = tl.maximum(visible_end, tl.max(tl.where(is_query, limit, 0), 0))
    if WINDOW > 0:
        first_position = context - end_row + first_row
        if HAS_TREES:  # nodes of one tile are at different places, none before its root; limits of images lie ahead
            limit_of_first = tl.load(tree_limits + first_row).to(tl.int32)
            first_position = tl.maximum(tl.minimum(first_position, limit_of_first - 1), 0)
        if IS_ALIGNED:
            visible_start = first_position // WINDOW * WINDOW
            unseen = position // WINDOW * WINDOW - 1  # the last token before each query's window
        else:
            visible_start = tl.maximum(first_position - WINDOW + 1, 0)
            unseen = position - WINDOW
    share = tl.cdiv(tl.cdiv(visible_end - visible_start, TILE_TOKENS), NUM_SPLITS) * TILE_TOKENS
    start = visible_start + split * share
    end = tl.minimum(start + share, visible_end)

    highest = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    mixed = tl.zeros([TILE_ROWS, PADDED_DIM], tl.float32)
    unit = tl.zeros([], tl.float32) + _SMALLEST_SCALE  # what `mixed` is counted in: the largest scale of values so far
    # Blocks are read a tile ahead: keys and values, whose addresses are known then, are what is pipelined.
    block = tl.load(table + (start + n) // BLOCK_SIZE, mask=start + n < end, other=0).to(tl.int32)
    for first in range(start, end, TILE_TOKENS):
        token = first + n
        is_token = token < end
        stored_head = (block * BLOCK_SIZE + token % BLOCK_SIZE) * NUM_KV_HEADS + kv_head  # below 2**31
        place = stored_head.to(tl.int64) * HEAD_DIM
        ahead = token + TILE_TOKENS
        block = tl.load(table + ahead // BLOCK_SIZE, mask=ahead < end, other=0).to(tl.int32)
        if REST_DIM > 0:  # rows of one tile, which is transposed for the scores
            of_key = keys + place[:, None]
            v = tl.load(of_key + REST_DIM + d[None, :], mask=is_token[:, None] & is_dim[None, :], other=0.0)
            k_rest = tl.load(of_key + r[None, :], mask=is_token[:, None] & is_rest[None, :], other=0.0)
            v, k_rest = v.to(q.dtype), k_rest.to(q.dtype)
            scores = tl.dot(q, tl.trans(v), input_precision="tf32x3")
            scores = tl.dot(q_rest, tl.trans(k_rest), scores, input_precision="tf32x3")
        else:
            k = tl.load(keys + place[:, None] + d[None, :], mask=is_token[:, None] & is_dim[None, :], other=0.0)
            scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="tf32x3")
        scores *= factor[:, None]
        if HAS_SCALES:
            scores *= tl.load(key_scales + stored_head, mask=is_token, other=0.0)[None, :]
        if HAS_SOFT_CAP:
            scores = soft_cap * _LOG2E * (2.0 * tl.sigmoid(2.0 * scores / soft_cap) - 1.0)
        if HAS_TREES:
            offset = token[None, :] - limit[:, None]
            behind = bits[:, None] >> tl.minimum(tl.maximum(offset, 0), 63).to(tl.uint64)
            is_visible = is_token[None, :] & ((offset < 0) | ((offset < 64) & ((behind & 1) != 0)))
            if WINDOW > 0:  # in the tree as many nodes on the way as bits from there on
                width = (position - unseen)[:, None]
                is_near = tl.where(offset < 0, token[None, :] > unseen[:, None], _num_set(behind) <= width)
                is_visible = is_visible & is_near
        else:
            is_visible = is_token[None, :] & (token[None, :] <= position[:, None])
            if WINDOW > 0:
                is_visible = is_visible & (token[None, :] > unseen[:, None])
        scores = tl.where(is_visible, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        fading = tl.exp2(highest - base)
        total = total * fading + tl.sum(weights, 1)
        if HAS_SCALES:
            value_scale = tl.load(value_scales + stored_head, mask=is_token, other=0.0)
            if q.dtype == tl.float16:
                larger = tl.maximum(unit, tl.max(value_scale, 0))
                value_scale /= larger
                fading *= unit / larger
                unit = larger
            weights *= value_scale[None, :]
        if REST_DIM == 0:
            v = tl.load(values + place[:, None] + d[None, :], mask=is_token[:, None] & is_dim[None, :], other=0.0)
            v = v.to(q.dtype)
            if HAS_SCALES and TILE_ROWS < 64:
                # Always true. Triton, which does not know, converts 16 bytes at a time before the product's layout.
                v = tl.where((n >= 0)[:, None], v, 0.0)
        mixed = mixed * fading[:, None] + tl.dot(weights.to(q.dtype), v, input_precision="tf32x3")
        highest = higher

    if HAS_SCALES and q.dtype == tl.float16:
        mixed *= unit
    place = row.to(tl.int64) * NUM_HEADS + head
    if NUM_SPLITS == 1:
        if HAS_SINKS:
            sink = tl.load(sinks + head, mask=is_query, other=0.0) * _LOG2E
            higher = tl.maximum(highest, sink)
            fading = tl.exp2(highest - higher)
            total, mixed = total * fading + tl.exp2(sink - higher), mixed * fading[:, None]
        mixed = mixed / tl.where(is_query, total, 1.0)[:, None]
        tl.store(
            output + place[:, None] * VALUE_DIM + d[None, :],
            mixed.to(output.dtype.element_ty),
            mask=is_query[:, None] & is_dim[None, :],
        )
    else:
        place = ((row - grid_row) * NUM_HEADS + head) * NUM_SPLITS + split
        tl.store(partial_max + place, highest, mask=is_query)
        tl.store(partial_sum + place, total, mask=is_query)
        tl.store(
            partial_output + place[:, None] * VALUE_DIM + d[None, :], mixed, mask=is_query[:, None] & is_dim[None, :]
        )


@triton.jit(do_not_specialize=["grid_row"])  # type: ignore[untyped-decorator]
def put_together_kernel(  # type: ignore[no-untyped-def]
    output,
    partial_output,
    partial_max,
    partial_sum,
    sinks,
    grid_row,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Program (row, head): the parts of one query's softmax as one."""
    row, head = tl.program_id(0), tl.program_id(1)
    s, d = tl.arange(0, PADDED_SPLITS), tl.arange(0, PADDED_DIM)
    is_split, is_dim = s < NUM_SPLITS, d < HEAD_DIM
    place = (row * NUM_HEADS + head) * NUM_SPLITS + s
    each_highest = tl.load(partial_max + place, mask=is_split, other=float("-inf"))
    each_total = tl.load(partial_sum + place, mask=is_split, other=0.0)
    mixed = tl.load(
        partial_output + place[:, None] * HEAD_DIM + d[None, :], mask=is_split[:, None] & is_dim[None, :], other=0.0
    )
    highest = tl.max(each_highest, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + head) * _LOG2E
        highest = tl.maximum(highest, sink)
    fading = tl.exp2(each_highest - highest)
    total = tl.sum(each_total * fading, 0)
    if HAS_SINKS:
        total += tl.exp2(sink - highest)
    whole = tl.sum(mixed * fading[:, None], 0) / total
    place = ((grid_row + row).to(tl.int64) * NUM_HEADS + head) * HEAD_DIM
    tl.store(output + place + d, whole.to(output.dtype.element_ty), mask=is_dim)


@dataclass(frozen=True, slots=True)
class Grid:
    """Tiles of one shape, for one launch."""

    first_tile: int
    num_tiles: int
    first_row: int
    num_rows: int
    tile_heads: int
    """Heads of a group side by side: all, or a divisor of their number."""
    tile_rows: int
    """Queries times heads, padded to a power of two of at least 16."""
    tile_tokens: int
    """Keys that a program looks at at a time."""
    num_warps: int
    """Of 32 threads each, that work on a tile."""
    num_stages: int
    """One more than the tiles of keys and values in shared memory or on their way there."""
    num_splits: int
    """Programs that share the context of a tile."""
    is_of_decodes: bool = False
    """Whether each of its sequences has a single row."""


@dataclass(frozen=True, slots=True)
class PagedStep:
    """The common input of all layers of one step; tensors are int32 on the cache's device unless stated otherwise."""

    table_rows: Tensor
    """int64 [slots, blocks]: every slot's block table."""
    slots: Tensor
    """[sequences]: the slot of each."""
    context_lens: Tensor
    """[sequences]: tokens that may be attended to."""
    query_starts: Tensor
    """[sequences + 1]: first row of each sequence, then the number of rows."""
    tile_sequences: Tensor
    """[tiles]: the sequence whose queries these are."""
    tile_starts: Tensor
    """[tiles]: the first row of each; a tile ends where it is full or its sequence ends."""
    slot_mapping: Tensor
    """int64 [tokens]: cache slot of each row's key and value."""
    grids: tuple[Grid, ...]
    trees: TreeRows | None = None
    """`DeviceBatch.trees`."""
    batch: DeviceBatch | None = None
    """The step as the runner describes it; None = a captured step."""


def paged_attention(
    query: Tensor,
    keys: StoredHeads,
    values: StoredHeads | None,
    output: Tensor,
    step: PagedStep,
    scoring: Scoring = PLAIN,
) -> None:
    """Causal grouped-query attention of a step's rows to their sequences' cache, into `output`.

    query and output [tokens, heads, head_dim], the output contiguous and of the query each row; keys and values
    [blocks, block_size, kv_heads, head_dim], with the step's own already stored. Values None = the last elements of
    keys, as many as the output's heads have.

    Bytes read from the cache: 2 x kv_heads x head_dim x element size for each visible token of each tile, and 8 x
    kv_heads of scales in 8 bits (132 instead of 256 for a head of 128); everything else is small. Operations: 4 x heads
    x head_dim for each visible pair of query and token. A decode of a group of 4 heads in bfloat16 does 4 operations
    per byte, of 8-bit numbers 8, far below the 200 or so that make a GPU wait for its arithmetic: the time is a single
    read of the cache.

    In a step with trees or images a query's visibility is 16 bytes more, read once, and each pair costs a shift more,
    and with a window a dozen operations on whole numbers, beside 4 x head_dim on floats.

    Numbers of 8 bits are exact in every format of queries, and scales come after the products: a key's to its scores, a
    value's to its weights. In float16 weights are at most 1 then: the largest scale so far is taken out. Beside 8-bit
    floats bfloat16 becomes float16, each row of queries times a power of two: elements below 2**-29 of the row's
    largest lose bits.
    """
    window, soft_cap, sinks, is_aligned = scoring
    num_heads, head_dim = query.shape[1:]
    value_dim = output.shape[2]
    block_size, num_kv_heads = keys.numbers.shape[1:3]
    padded_dim, padded_rest = (max(16, triton.next_power_of_2(size)) for size in (value_dim, head_dim - value_dim))
    of_values = keys if values is None else values
    for grid in step.grids:
        trees = None if grid.is_of_decodes else step.trees
        partial = _room_for_parts(output, grid) if grid.num_splits > 1 else (output, output, output)
        tiles = slice(grid.first_tile, grid.first_tile + grid.num_tiles)
        paged_attention_kernel[(grid.num_tiles, num_heads // grid.tile_heads, grid.num_splits)](
            output,
            *partial,
            query,
            keys.numbers,
            keys.numbers if keys.scales is None else keys.scales,
            of_values.numbers,
            of_values.numbers if of_values.scales is None else of_values.scales,
            step.table_rows,
            step.slots,
            step.context_lens,
            step.query_starts,
            step.tile_sequences[tiles],
            step.tile_starts[tiles],
            *((step.slot_mapping, step.slot_mapping) if trees is None else trees),
            output if sinks is None else sinks,
            head_dim**-0.5,
            soft_cap,
            query.stride(0),
            step.table_rows.stride(0),
            grid.first_row,
            NUM_HEADS=num_heads,
            NUM_KV_HEADS=num_kv_heads,
            HEAD_DIM=head_dim,
            REST_DIM=head_dim - value_dim,
            PADDED_DIM=padded_dim,
            PADDED_REST=padded_rest,
            BLOCK_SIZE=block_size,
            TILE_HEADS=grid.tile_heads,
            TILE_ROWS=grid.tile_rows,
            TILE_TOKENS=grid.tile_tokens,
            WINDOW=window,
            IS_ALIGNED=is_aligned,
            HAS_SOFT_CAP=soft_cap > 0.0,
            HAS_SINKS=sinks is not None,
            HAS_SCALES=keys.scales is not None,
            NUM_SPLITS=grid.num_splits,
            HAS_TREES=trees is not None,
            num_warps=grid.num_warps,
            num_stages=grid.num_stages,
        )
        if grid.num_splits > 1:
            put_together_kernel[(grid.num_rows, num_heads)](
                output,
                *partial,
                output if sinks is None else sinks,
                grid.first_row,
                NUM_HEADS=num_heads,
                HEAD_DIM=value_dim,
                PADDED_DIM=padded_dim,
                NUM_SPLITS=grid.num_splits,
                PADDED_SPLITS=triton.next_power_of_2(grid.num_splits),
                HAS_SINKS=sinks is not None,
            )


def _room_for_parts(output: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
    """float32: mixed values [rows, heads, splits, head_dim]; highest scores, sums of weights [rows, heads, splits]."""
    shape = (grid.num_rows, output.shape[1], grid.num_splits)
    return (
        torch.empty((*shape, output.shape[2]), dtype=torch.float32, device=output.device),
        torch.empty(shape, dtype=torch.float32, device=output.device),
        torch.empty(shape, dtype=torch.float32, device=output.device),
    )
