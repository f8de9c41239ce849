"""Products of rows with the weights of the experts that they go to, in one launch: Triton.

The pairs of an expert are cut into tiles. How many tiles there are depends on who goes where, which only the device
knows: so there are as many programs as there can be tiles, each finds its own by the experts' ends, and those that find
none are over at once. Rows are read, and results written, where they lie: nothing is sorted but the pairs' numbers.

Bytes: of each expert that anybody goes to the weight, 2 x out_features x in_features in 16 bits, for each 16 of its
pairs, or 64 where there are many; a pair's inputs once for each tile of outputs, from the L2 cache. Operations: 2 x
pairs x out_features x in_features, and up to 16 times that where each of many experts has one pair: 16 a byte, so the
time is that of reading the weights.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairlead_engine.kernels.expert_product import ExpertPairs

_FEW_ROWS, _MANY_ROWS = 16, 64
"""Pairs to a tile: tensor cores multiply 16 at least."""
_MANY_PAIRS = 32
"""To each expert, on average, from which on tiles are large."""
_TILE_OUTPUTS = 64
_TILE_INPUTS = 64
_NUM_WARPS = 4
_NUM_STAGES = 3


@triton.jit  # type: ignore[untyped-decorator]
def expert_product_kernel(  # type: ignore[no-untyped-def]
    output,
    x,
    weights,
    order,
    ends,
    out_features,
    INPUT_SIZE,
    x_stride,
    weight_stride,
    PAIRS_PER_ROW: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    PADDED_EXPERTS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
    IS_EVEN: tl.constexpr,
):
    """Program (tile of pairs, tile of outputs)."""
    tile = tl.program_id(0)
    e = tl.arange(0, PADDED_EXPERTS)
    is_expert = e < NUM_EXPERTS
    end = tl.load(ends + e, mask=is_expert, other=0)
    start = tl.load(ends + e - 1, mask=is_expert & (e > 0), other=0)
    num_tiles = (end - start + TILE_ROWS - 1) // TILE_ROWS
    tiles_end = tl.cumsum(num_tiles, 0)
    is_mine = (tiles_end - num_tiles <= tile) & (tile < tiles_end)  # of one expert, or of none
    expert = tl.sum(tl.where(is_mine, e, 0), 0).to(tl.int64)
    first = tl.sum(tl.where(is_mine, start + (tile - tiles_end + num_tiles) * TILE_ROWS, 0), 0)
    last = tl.sum(tl.where(is_mine, end, 0), 0)

    m, k = tl.arange(0, TILE_ROWS), tl.arange(0, TILE_INPUTS)
    n = tl.program_id(1) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    is_pair, is_output = first + m < last, n < out_features
    pair = tl.load(order + first + m, mask=is_pair, other=0)
    rows = x + (pair // PAIRS_PER_ROW * x_stride)[:, None] + k[None, :]
    columns = weights + expert * out_features * weight_stride + (n.to(tl.int64) * weight_stride)[None, :] + k[:, None]
    total = tl.zeros([TILE_ROWS, TILE_OUTPUTS], tl.float32)
    for at in range(0, tl.where(first < last, INPUT_SIZE, 0), TILE_INPUTS):
        is_of_x, is_of_weight = is_pair[:, None], is_output[None, :]
        if not IS_EVEN:
            is_in = k + at < INPUT_SIZE
            is_of_x, is_of_weight = is_of_x & is_in[None, :], is_of_weight & is_in[:, None]
        some = tl.load(rows + at, mask=is_of_x, other=0.0)
        weight = tl.load(columns + at, mask=is_of_weight, other=0.0)
        total += tl.dot(some, weight, input_precision="ieee")
    place = output + (pair * out_features)[:, None] + n[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=is_pair[:, None] & is_output[None, :])


def expert_product(x: Tensor, weights: Tensor, pairs: ExpertPairs) -> Tensor:
    """As `kernels.expert_product.expert_product`; weights lie side by side."""
    num_experts, out_features, in_features = weights.shape
    num_pairs = len(pairs.order)
    output = torch.empty((num_pairs, out_features), dtype=x.dtype, device=x.device)
    if num_pairs:
        tile_rows = _MANY_ROWS if num_pairs >= _MANY_PAIRS * num_experts else _FEW_ROWS
        most_tiles = (num_pairs + (tile_rows - 1) * min(num_experts, num_pairs)) // tile_rows
        expert_product_kernel[(most_tiles, triton.cdiv(out_features, _TILE_OUTPUTS))](
            output,
            x,
            weights,
            pairs.order,
            pairs.ends,
            out_features,
            in_features,
            x.stride(0) if len(x) > 1 else in_features,  # that of a single row may be anything
            weights.stride(1),
            PAIRS_PER_ROW=num_pairs // len(x),
            NUM_EXPERTS=num_experts,
            PADDED_EXPERTS=triton.next_power_of_2(num_experts),
            TILE_ROWS=tile_rows,
            TILE_OUTPUTS=_TILE_OUTPUTS,
            TILE_INPUTS=_TILE_INPUTS,
            IS_EVEN=in_features % _TILE_INPUTS == 0,
            num_warps=_NUM_WARPS,
            num_stages=_NUM_STAGES,
        )
    return output
