"""Drawing tokens on a GPU: temperature, top-k, top-p, min-p and the draw, without sorting: Triton.

The kept part of a row is everything at least as likely as some token: truncation is a search for the token's distance
from the likeliest. Distances are not negative, and the bits of such floats have the order of the floats. First all
multiprocessors measure what lies within fixed distances; then a program per row gathers the distances between two of
these, and finds the cut among them to the last bit, a few cuts at a time. Ties are kept together, as in transformers'
top-k. The draw looks at sums of parts of the row first, and then into one part. Sums have a fixed order.

Bytes: a row is read twice without truncation, four times with it, and the gathered distances are written once and read
a few times: 4 x vocab for each read of float32, from the L2 cache where all rows together have less than 30 MB.
Operations: about 15 per number that is read, an exponential among them; 85 to measure within 32 distances; to search,
some 50 per gathered distance in each of 6 passes, or of 8 for top-p after top-k.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_PART, _NUM_WARPS = 4096, 8
"""Columns of a program where a row has several."""
_NUM_EDGES = 32
_TILE, _NUM_PROBES, _SEARCH_WARPS = 2048, 16, 16
"""Columns that one program of a row gathers at a time; cuts in a pass of its search."""
_LARGEST: tl.constexpr = tl.constexpr(0x7F7FFFFF)
"""The bits of the largest finite distance."""
_QUARTER: tl.constexpr = tl.constexpr(0x3E800000)
"""The bits of 0.25."""
_EDGE_STEP: tl.constexpr = tl.constexpr(1 << 21)
"""Between bits of floats: a quarter of the way to twice as much."""


@triton.jit  # type: ignore[untyped-decorator]
def _distances(row, first, highest, temperature, VOCAB_SIZE, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """How far a tile's scaled logits are below the likeliest one's: float32 [TILE], infinite behind the row's end."""
    column = first + tl.arange(0, TILE)
    x = tl.load(row + column, mask=column < VOCAB_SIZE, other=float("-inf")).to(tl.float32)
    return (highest - x) / temperature


@triton.jit  # type: ignore[untyped-decorator]
def _edges(temperature, by_count, EDGES: tl.constexpr):  # type: ignore[no-untyped-def]
    """The bits of 0, of distances from 0.25 to 40 with four to each doubling, and of the largest, int32 [EDGES], for
    weights. For counts, and where weights are flattened, the differences of logits are of these sizes instead."""
    edge = tl.arange(0, EDGES)
    distance = ((edge - 1) * _EDGE_STEP + _QUARTER).to(tl.float32, bitcast=True)
    distance /= tl.where(by_count, temperature, tl.maximum(temperature, 1.0))
    bits = tl.where(edge == 0, 0, distance.to(tl.int32, bitcast=True))
    return tl.where(edge == EDGES - 1, _LARGEST, bits)


@triton.jit
def _add_within(found, distance, limits, by_count):  # type: ignore[no-untyped-def]
    """`found` [limits, n] and, where a distance [n] is within a limit (bits [limits]), its weight, or 1 `by_count`.
    With n threads the sums are each thread's own, and nothing is exchanged within a loop."""
    amount = tl.where(by_count, 1.0, tl.exp(-distance))
    is_within = distance.to(tl.int32, bitcast=True)[None, :] <= limits[:, None]
    return tl.where(is_within, found + amount[None, :], found)  # two instructions; with a sum of `where` three


@triton.jit  # type: ignore[untyped-decorator]
def measure_kernel(  # type: ignore[no-untyped-def]
    amounts,
    logits,
    highest,
    temperatures,
    top_ks,
    top_ps,
    row_stride,
    VOCAB_SIZE,
    PART: tl.constexpr,
    EDGES: tl.constexpr,
    LANES: tl.constexpr,
):
    """Program (part, row): tokens, or without top-k weights, within each of the `_edges`, float32 [rows, parts, EDGES].
    Nothing where a row is not truncated."""
    part, index = tl.program_id(0), tl.program_id(1)
    row = logits + index.to(tl.int64) * row_stride
    temperature, likeliest = tl.load(temperatures + index), tl.load(highest + index).to(tl.float32)
    top_k = tl.load(top_ks + index)
    by_count = (top_k > 0) & (top_k < VOCAB_SIZE)
    if by_count | (tl.load(top_ps + index) < 1.0):
        edges = _edges(temperature, by_count, EDGES)
        found = tl.zeros([EDGES, LANES], tl.float32)
        for at in tl.range(0, PART, LANES, loop_unroll_factor=4):
            distance = _distances(row, part * PART + at, likeliest, temperature, VOCAB_SIZE, LANES)
            found = _add_within(found, distance, edges, by_count)
        place = (index * tl.num_programs(0) + part) * EDGES + tl.arange(0, EDGES)
        tl.store(amounts + place, tl.sum(found, 1))


@triton.jit  # type: ignore[untyped-decorator]
def _gathered(  # type: ignore[no-untyped-def]
    candidates, row, highest, temperature, low, high, VOCAB_SIZE, TILE: tl.constexpr
):
    """How many distances of a row, in order of ids, have bits above `low` and not above `high`; they are written."""
    size = low * 0
    for first in tl.range(0, VOCAB_SIZE, TILE, num_stages=4):
        distance = _distances(row, first, highest, temperature, VOCAB_SIZE, TILE)
        bits = distance.to(tl.int32, bitcast=True)
        is_between = ((bits > low) & (bits <= high)).to(tl.int32)
        num = tl.sum(is_between, 0)
        if num > 0:
            tl.store(candidates + size + tl.cumsum(is_between, 0) - 1, distance, mask=is_between > 0)
        size += num
    tl.debug_barrier()  # what some threads have written, others will read
    return size


@triton.jit  # type: ignore[untyped-decorator]
def _nearest_cut(  # type: ignore[no-untyped-def]
    candidates, size, low, high, wanted, by_count, PROBES: tl.constexpr, TILE: tl.constexpr
):
    """The bits of the least distance, above `low` and at most `high`, within which candidates weigh, or number,
    `wanted`."""
    probe, offset = tl.arange(0, PROBES) + 1, tl.arange(0, TILE)
    while high - low > 1:
        cuts = tl.minimum(low + probe * tl.maximum((high - low) // (PROBES + 1), 1), high)
        found = tl.zeros([PROBES, TILE], tl.float32)
        for first in tl.range(0, size, TILE, loop_unroll_factor=2):
            distance = tl.load(candidates + first + offset, mask=first + offset < size, other=float("inf"))
            found = _add_within(found, distance, cuts, by_count)
        enough = tl.sum(found, 1) >= wanted
        high = tl.minimum(high, tl.min(tl.where(enough, cuts, high), 0))
        low = tl.maximum(low, tl.max(tl.where(enough, low, cuts), 0))
    return high


@triton.jit  # type: ignore[untyped-decorator]
def _weight_within(candidates, size, cut, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of the candidates whose bits are not above the cut's."""
    offset, total = tl.arange(0, TILE), tl.zeros([TILE], tl.float32)
    for first in range(0, size, TILE):
        distance = tl.load(candidates + first + offset, mask=first + offset < size, other=float("inf"))
        total += tl.where(distance.to(tl.int32, bitcast=True) <= cut, tl.exp(-distance), 0.0)
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=["num_parts"])  # type: ignore[untyped-decorator]
def cut_kernel(  # type: ignore[no-untyped-def]
    farthest,
    candidates,
    amounts,
    logits,
    highest,
    temperatures,
    top_ks,
    top_ps,
    row_stride,
    VOCAB_SIZE,
    num_parts,
    PADDED_PARTS: tl.constexpr,
    EDGES: tl.constexpr,
    TILE: tl.constexpr,
    PROBES: tl.constexpr,
    LANES: tl.constexpr,
):
    """Program (row): brings `farthest` down to what top-k and top-p leave, by what `measure_kernel` has found.
    `candidates` float32 [rows, VOCAB_SIZE] is for its own use."""
    index = tl.program_id(0)
    row, candidates = logits + index.to(tl.int64) * row_stride, candidates + index.to(tl.int64) * VOCAB_SIZE
    temperature, likeliest = tl.load(temperatures + index), tl.load(highest + index).to(tl.float32)
    top_k, top_p = tl.load(top_ks + index), tl.load(top_ps + index)
    by_count = (top_k > 0) & (top_k < VOCAB_SIZE)
    if by_count | (top_p < 1.0):
        edge, part = tl.arange(0, EDGES), tl.arange(0, PADDED_PARTS)
        places = (index * num_parts + part)[:, None] * EDGES + edge[None, :]
        amount = tl.sum(tl.load(amounts + places, mask=(part < num_parts)[:, None], other=0.0), 0)
        wanted = tl.where(by_count, top_k.to(tl.float32), top_p * tl.max(amount, 0))
        edges, enough = _edges(temperature, by_count, EDGES), amount >= wanted
        low, high = tl.max(tl.where(enough, -1, edges), 0), tl.min(tl.where(enough, edges, _LARGEST), 0)
        # Top-p after top-k asks for all that is left, top-p alone for what is near the cut.
        outside = tl.where(by_count, -1, low)
        wanted -= tl.where(by_count, 0.0, tl.max(tl.where(enough, 0.0, amount), 0))
        size = _gathered(candidates, row, likeliest, temperature, outside, high, VOCAB_SIZE, TILE)
        cut = _nearest_cut(candidates, size, low, high, wanted, by_count, PROBES, LANES)
        if by_count & (top_p < 1.0):
            wanted = top_p * _weight_within(candidates, size, cut, LANES)
            cut = _nearest_cut(candidates, size, low * 0 - 1, cut, wanted, False, PROBES, LANES)
        nearest = tl.minimum(tl.load(farthest + index), cut.to(tl.float32, bitcast=True))
        tl.store(farthest + index, nearest)


@triton.jit  # type: ignore[untyped-decorator]
def _kept_weights(  # type: ignore[no-untyped-def]
    part, index, farthest, logits, highest, temperatures, row_stride, VOCAB_SIZE, PART: tl.constexpr
):
    """A part's weights, 0 beyond a row's farthest distance: float64 [PART]."""
    row, likeliest = logits + index.to(tl.int64) * row_stride, tl.load(highest + index).to(tl.float32)
    distance = _distances(row, part * PART, likeliest, tl.load(temperatures + index), VOCAB_SIZE, PART)
    return tl.where(distance <= tl.load(farthest + index), tl.exp(-distance), 0.0).to(tl.float64)


@triton.jit  # type: ignore[untyped-decorator]
def sum_kernel(  # type: ignore[no-untyped-def]
    sums, farthest, logits, highest, temperatures, row_stride, VOCAB_SIZE, PART: tl.constexpr
):
    """Program (part, row): the sum of the kept weights, float64 [rows, parts]."""
    part, index = tl.program_id(0), tl.program_id(1)
    weights = _kept_weights(part, index, farthest, logits, highest, temperatures, row_stride, VOCAB_SIZE, PART)
    tl.store(sums + index * tl.num_programs(0) + part, tl.sum(weights, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _reached(amounts, cumulative, share, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first of [SIZE] amounts above 0 whose cumulative sum exceeds the share, else the last above 0, else 0."""
    place, is_there = tl.arange(0, SIZE), amounts > 0.0
    first = tl.min(tl.where(is_there & (cumulative > share), place, SIZE), 0)
    return tl.minimum(first, tl.max(tl.where(is_there, place, 0), 0))


@triton.jit(do_not_specialize=["num_parts"])  # type: ignore[untyped-decorator]
def choose_kernel(  # type: ignore[no-untyped-def]
    token_ids,
    uniforms,
    sums,
    farthest,
    logits,
    highest,
    temperatures,
    row_stride,
    VOCAB_SIZE,
    num_parts,
    PADDED_PARTS: tl.constexpr,
    PART: tl.constexpr,
):
    """Program (row): the token at the uniform's place, first its part by the sums of `sum_kernel`."""
    index, offset = tl.program_id(0), tl.arange(0, PADDED_PARTS)
    amounts = tl.load(sums + index * num_parts + offset, mask=offset < num_parts, other=0.0)
    cumulative = tl.cumsum(amounts, 0)
    share = tl.load(uniforms + index) * tl.max(cumulative, 0)
    part = _reached(amounts, cumulative, share, PADDED_PARTS)
    share -= tl.sum(tl.where(offset < part, amounts, 0.0), 0)
    weights = _kept_weights(part, index, farthest, logits, highest, temperatures, row_stride, VOCAB_SIZE, PART)
    tl.store(token_ids + index, part * PART + _reached(weights, tl.cumsum(weights, 0), share, PART))


def draw(
    logits: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniforms: Tensor,
    truncates: bool = True,
) -> Tensor:
    """One token id per row of logits [rows, vocab], int32 [rows]. temperatures (above 0), top_p, min_p float32 [rows];
    top_k int32 [rows], 0 = all; uniforms float64 [rows] in [0, 1): places in the kept weight, in order of ids.
    `truncates`: whether any row has top-k or top-p."""
    num_rows, vocab_size = logits.shape
    num_parts, device = triton.cdiv(vocab_size, _PART), logits.device
    padded, row_stride = triton.next_power_of_2(num_parts), logits.stride(0)
    highest, farthest = logits.amax(-1), min_p.log().neg_()
    if truncates:
        amounts = torch.empty((num_rows, num_parts, _NUM_EDGES), dtype=torch.float32, device=device)
        row_settings = highest, temperatures, top_k, top_p, row_stride, vocab_size
        measure_kernel[(num_parts, num_rows)](
            amounts, logits, *row_settings, PART=_PART, EDGES=_NUM_EDGES, LANES=32 * _NUM_WARPS, num_warps=_NUM_WARPS
        )
        cut_kernel[(num_rows,)](
            farthest,
            torch.empty((num_rows, vocab_size), dtype=torch.float32, device=device),
            amounts,
            logits,
            *row_settings,
            num_parts,
            PADDED_PARTS=padded,
            EDGES=_NUM_EDGES,
            TILE=_TILE,
            PROBES=_NUM_PROBES,
            LANES=32 * _SEARCH_WARPS,
            num_warps=_SEARCH_WARPS,
        )
    sums = torch.empty((num_rows, num_parts), dtype=torch.float64, device=device)
    kept = farthest, logits, highest, temperatures, row_stride, vocab_size
    sum_kernel[(num_parts, num_rows)](sums, *kept, PART=_PART, num_warps=_NUM_WARPS)
    token_ids = torch.empty(num_rows, dtype=torch.int32, device=device)
    choose_kernel[(num_rows,)](
        token_ids, uniforms, sums, *kept, num_parts, PADDED_PARTS=padded, PART=_PART, num_warps=_NUM_WARPS
    )
    return token_ids
