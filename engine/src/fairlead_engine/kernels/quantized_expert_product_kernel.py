"""Products of rows with the quantised weights of the experts that they go to, in one launch: Triton.

Pairs are cut into tiles as `expert_product_kernel` does it. Numbers of 8 bits are exact in 16, so tiles of weights are
multiplied as they are, and the scale of a group of columns is applied to the sums, which are fewer; where columns are
in groups of any order, or a tile would have several, each number gets its own before the product.

Bytes: of each expert that anybody goes to out_features x in_features, and 4 bytes for each of its scales (offsets as
many), for each 16 of its pairs, or 64 where there are many: half of what floats of 16 bits take, and 9/16 in groups of
32. A pair's inputs once for each tile of outputs, from the L2 cache. Operations: 2 x pairs x out_features x
in_features, up to 16 times that where each of many experts has one pair, and the conversion of each weight: 33 a byte
for tiles of 16, 129 for those of 64, so the time is that of reading the weights until there are many pairs.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairlead_engine.kernels.expert_product import ExpertPairs
from fairlead_engine.kernels.quantized_expert_product import ExpertIntegers

_FEW_ROWS, _MANY_ROWS = 16, 64
"""Pairs to a tile: tensor cores multiply 16 at least."""
_MANY_PAIRS = 32
"""To each expert, on average, from which on tiles are large."""
_TILE_OUTPUTS = 64
_MOST_INPUTS = {_FEW_ROWS: 128, _MANY_ROWS: 64}
"""Of a tile, by its pairs: bytes of a row of a weight."""
_TILE_COLUMNS = 32
"""Where each of them has a scale of its own."""
_NUM_WARPS = 4
_NUM_STAGES = 3


@triton.jit  # type: ignore[untyped-decorator]
def quantized_expert_product_kernel(  # type: ignore[no-untyped-def]
    output,
    x,
    x_scales,
    values,
    scales,
    offsets,
    groups,
    order,
    ends,
    out_features,
    INPUT_SIZE,
    x_stride,
    num_groups,
    PAIRS_PER_ROW: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    PADDED_EXPERTS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    PER_ROW: tl.constexpr,
    PER_TILE: tl.constexpr,
    HAS_ROW_SCALES: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
):
    """Program (tile of pairs, tile of outputs). Of a weight's scales there is one for each row, or for each tile of it,
    or each column has that of its group, which is in `groups` or follows from `GROUP_SIZE`."""
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
    above = expert * out_features + n.to(tl.int64)
    columns = values + (above * INPUT_SIZE)[None, :] + k[:, None]
    total = tl.zeros([TILE_ROWS, TILE_OUTPUTS], tl.float32)
    for at in range(0, tl.where(first < last, INPUT_SIZE, 0), TILE_INPUTS):
        is_of_x, is_of_weight, is_in = is_pair[:, None], is_output[None, :], k < TILE_INPUTS
        if not IS_EVEN:
            is_in = k + at < INPUT_SIZE
            is_of_x, is_of_weight = is_of_x & is_in[None, :], is_of_weight & is_in[:, None]
        some = tl.load(rows + at, mask=is_of_x, other=0.0).to(output.dtype.element_ty)
        weight = tl.load(columns + at, mask=is_of_weight, other=0.0)
        if PER_ROW:
            total += tl.dot(some, weight.to(output.dtype.element_ty), input_precision="ieee")
        elif PER_TILE:
            group = above * num_groups + at // GROUP_SIZE
            scale = tl.load(scales + group, mask=is_output, other=0.0)
            product = tl.dot(some, weight.to(output.dtype.element_ty), input_precision="ieee")
            total += product * scale[None, :]
            if HAS_OFFSETS:
                offset = tl.load(offsets + group, mask=is_output, other=0.0)
                total += tl.sum(some.to(tl.float32), 1)[:, None] * offset[None, :]
        else:
            if HAS_GROUPS:
                group = tl.load(groups + expert * INPUT_SIZE + at + k, mask=is_in, other=0)
            else:
                group = (at + k) // GROUP_SIZE
            place = (above * num_groups)[None, :] + group[:, None]
            decoded = weight.to(tl.float32) * tl.load(scales + place, mask=is_of_weight, other=0.0)
            if HAS_OFFSETS:
                decoded += tl.load(offsets + place, mask=is_of_weight, other=0.0)
            total += tl.dot(some, decoded.to(output.dtype.element_ty), input_precision="ieee")
    if PER_ROW:
        total *= tl.load(scales + above, mask=is_output, other=0.0)[None, :]
    if HAS_ROW_SCALES:
        total *= tl.load(x_scales + pair // PAIRS_PER_ROW, mask=is_pair, other=0.0)[:, None]
    place = output + (pair * out_features)[:, None] + n[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=is_pair[:, None] & is_output[None, :])


def quantized_expert_product(
    x: Tensor, x_scales: Tensor | None, weights: ExpertIntegers, pairs: ExpertPairs, dtype: torch.dtype
) -> Tensor:
    """As `kernels.quantized_expert_product.quantized_expert_product`; weights lie side by side."""
    num_experts, out_features, in_features = weights.values.shape
    num_pairs, num_groups = len(pairs.order), weights.scales.shape[2]
    output = torch.empty((num_pairs, out_features), dtype=dtype, device=x.device)
    if num_pairs:
        tile_rows = _MANY_ROWS if num_pairs >= _MANY_PAIRS * num_experts else _FEW_ROWS
        most_tiles = (num_pairs + (tile_rows - 1) * min(num_experts, num_pairs)) // tile_rows
        shape = _shape(weights, _MOST_INPUTS[tile_rows])
        quantized_expert_product_kernel[(most_tiles, triton.cdiv(out_features, _TILE_OUTPUTS))](
            output,
            x,
            output if x_scales is None else x_scales,
            weights.values,
            weights.scales,
            weights.scales if weights.offsets is None else weights.offsets,
            pairs.order if weights.groups is None else weights.groups,
            pairs.order,
            pairs.ends,
            out_features,
            in_features,
            x.stride(0) if len(x) > 1 else in_features,  # that of a single row may be anything
            num_groups,
            PAIRS_PER_ROW=num_pairs // len(x),
            NUM_EXPERTS=num_experts,
            PADDED_EXPERTS=triton.next_power_of_2(num_experts),
            GROUP_SIZE=shape.group_size,
            TILE_ROWS=tile_rows,
            TILE_OUTPUTS=_TILE_OUTPUTS,
            TILE_INPUTS=shape.tile_inputs,
            IS_EVEN=in_features % shape.tile_inputs == 0,
            PER_ROW=shape.per_row,
            PER_TILE=shape.per_tile,
            HAS_ROW_SCALES=x_scales is not None,
            HAS_OFFSETS=weights.offsets is not None,
            HAS_GROUPS=weights.groups is not None,
            num_warps=_NUM_WARPS,
            num_stages=_NUM_STAGES,
        )
    return output


class _Shape(NamedTuple):
    """How the scales of a weight lie over its columns, and how many of those are multiplied at a time."""

    per_row: bool
    per_tile: bool
    group_size: int
    tile_inputs: int


def _shape(weights: ExpertIntegers, most_inputs: int) -> _Shape:
    size, num_groups = weights.group_size, weights.scales.shape[2]
    if weights.groups is not None:
        return _Shape(False, False, size, _TILE_COLUMNS)
    if num_groups == 1:
        has_offsets = weights.offsets is not None
        return _Shape(not has_offsets, has_offsets, most_inputs * max(1, size), most_inputs)
    for tile_inputs in (most_inputs, 64, 32, 16):
        if size % tile_inputs == 0:
            return _Shape(False, True, size, tile_inputs)
    return _Shape(False, False, size, _TILE_COLUMNS)
