"""Drawing tokens on a GPU: temperature, top-k, top-p, min-p and the draw, a program per row, without sorting: Triton.

The kept part of a row is everything at least as likely as some token: truncation is a search for the token's distance
from the likeliest. Distances are not negative, and the bits of such floats have the order of the floats: each pass over
the row tries a few cuts at once, and ten passes find the cut to the last bit. Ties are kept together, as in
transformers' top-k.

Bytes: a row is read 3 times without truncation, and about 10 times more for each of top-k and top-p; it stays in the L2
cache meanwhile, 600 kB at 152,000 tokens. Operations: about five per number of a pass, an exponential among them, and
two more for each of 8 cuts in searching passes: some 200 per token of the vocabulary for each of top-k and top-p, 30
million at 152,000 tokens, by one multiprocessor for each row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE, _NUM_PROBES, _NUM_WARPS = 2048, 8, 8
_INFINITE: tl.constexpr = tl.constexpr(0x7F800000)


@triton.jit  # type: ignore[untyped-decorator]
def _distances(row, first, highest, temperature, VOCAB_SIZE, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """How far a tile's scaled logits are below the likeliest one's: float32 [TILE], infinite behind the row's end."""
    column = first + tl.arange(0, TILE)
    x = tl.load(row + column, mask=column < VOCAB_SIZE, other=float("-inf")).to(tl.float32)
    return (highest - x) / temperature


@triton.jit  # type: ignore[untyped-decorator]
def _nearest_cut(  # type: ignore[no-untyped-def]
    row,
    highest,
    temperature,
    most,
    wanted,
    VOCAB_SIZE,
    BY_WEIGHT: tl.constexpr,
    TILE: tl.constexpr,
    PROBES: tl.constexpr,
):
    """The bits of the least distance, at most `most`, that encloses `wanted`: a share of the weights, or tokens."""
    low, high = most * 0 - 1, most
    probe = tl.arange(0, PROBES) + 1
    while high - low > 1:
        step = tl.maximum((high - low) // (PROBES + 1), 1)
        cuts = tl.minimum(low + probe * step, high)
        found = tl.zeros([PROBES], tl.float32)
        for first in range(0, VOCAB_SIZE, TILE):
            distance = _distances(row, first, highest, temperature, VOCAB_SIZE, TILE)
            is_within = distance.to(tl.int32, bitcast=True)[None, :] <= cuts[:, None]
            amount = tl.exp(-distance) if BY_WEIGHT else tl.where(distance < float("inf"), 1.0, 0.0)
            found += tl.sum(tl.where(is_within, amount[None, :], 0.0), 1)
        enough = found >= wanted
        high = tl.minimum(high, tl.min(tl.where(enough, cuts, high), 0))
        low = tl.maximum(low, tl.max(tl.where(enough, low, cuts), 0))
    return high


@triton.jit  # type: ignore[untyped-decorator]
def draw_kernel(  # type: ignore[no-untyped-def]
    token_ids,
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    uniforms,
    row_stride,
    VOCAB_SIZE,
    TILE: tl.constexpr,
    PROBES: tl.constexpr,
):
    """Program (row); see `draw` for the arguments."""
    index = tl.program_id(0)
    row = logits + index.to(tl.int64) * row_stride
    temperature = tl.load(temperatures + index)
    top_k, top_p, min_p = tl.load(top_ks + index), tl.load(top_ps + index), tl.load(min_ps + index)
    offset = tl.arange(0, TILE)

    each_highest = tl.full([TILE], float("-inf"), tl.float32)
    for first in range(0, VOCAB_SIZE, TILE):
        x = tl.load(row + first + offset, mask=first + offset < VOCAB_SIZE, other=float("-inf")).to(tl.float32)
        each_highest = tl.maximum(each_highest, x)
    highest = tl.max(each_highest, 0)

    cut = top_k * 0 + _INFINITE - 1  # the bits of the largest finite distance
    if (top_k > 0) & (top_k < VOCAB_SIZE):
        cut = _nearest_cut(row, highest, temperature, cut, top_k.to(tl.float32), VOCAB_SIZE, False, TILE, PROBES)
    if top_p < 1.0:
        total = top_p * 0.0
        for first in range(0, VOCAB_SIZE, TILE):
            distance = _distances(row, first, highest, temperature, VOCAB_SIZE, TILE)
            total += tl.sum(tl.where(distance.to(tl.int32, bitcast=True) <= cut, tl.exp(-distance), 0.0), 0)
        cut = _nearest_cut(row, highest, temperature, cut, top_p * total, VOCAB_SIZE, True, TILE, PROBES)
    farthest = cut.to(tl.float32, bitcast=True)
    if min_p > 0.0:
        farthest = tl.minimum(farthest, -tl.log(min_p))

    total = tl.zeros([], tl.float64)
    for first in range(0, VOCAB_SIZE, TILE):
        distance = _distances(row, first, highest, temperature, VOCAB_SIZE, TILE)
        total += tl.sum(tl.where(distance <= farthest, tl.exp(-distance), 0.0).to(tl.float64), 0)
    share, before = tl.load(uniforms + index) * total, tl.zeros([], tl.float64)
    chosen, last = index * 0 - 1, index * 0
    for first in range(0, VOCAB_SIZE, TILE):
        distance = _distances(row, first, highest, temperature, VOCAB_SIZE, TILE)
        weights = tl.where(distance <= farthest, tl.exp(-distance), 0.0).to(tl.float64)
        after = before + tl.sum(weights, 0)
        if (chosen < 0) & (after > before):
            last = first + tl.max(tl.where(weights > 0.0, offset, 0), 0)
            if after > share:
                reached = (before + tl.cumsum(weights, 0) > share) & (weights > 0.0)
                chosen = tl.minimum(first + tl.min(tl.where(reached, offset, TILE), 0), last)
        before = after
    tl.store(token_ids + index, tl.where(chosen < 0, last, chosen))


def draw(logits: Tensor, temperatures: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniforms: Tensor) -> Tensor:
    """One token id per row of logits [rows, vocab], int32 [rows]. temperatures (above 0), top_p, min_p float32 [rows];
    top_k int32 [rows], 0 = all; uniforms float64 [rows] in [0, 1): places in the kept weight, in order of ids."""
    num_rows, vocab_size = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    draw_kernel[(num_rows,)](
        token_ids,
        logits,
        temperatures,
        top_k,
        top_p,
        min_p,
        uniforms,
        logits.stride(0),
        vocab_size,
        TILE=_TILE,
        PROBES=_NUM_PROBES,
        num_warps=_NUM_WARPS,
    )
    return token_ids
