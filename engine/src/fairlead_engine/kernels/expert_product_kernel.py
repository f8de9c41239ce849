"""Products of rows with the weights of their experts, and the operations before and after: Triton.

Two launches are a layer's experts: one program multiplies gate and up of a tile, and applies the gate; the second
product is weighted by token. Weights are floats, or 8-bit numbers decoded within; rows may be rounded before, by the
largest magnitude of a row, found by the row's writer, or of a tile of it.

The pairs of an expert are cut into tiles. The number of tiles depends on the routes, known on the device only: the
launch has as many programs as tiles are possible, each finds its tile from the experts' numbers of pairs, and programs
without a tile end at once. Rows are read, and results written, in place.

Tiles of weights are decoded as a single weight's are (`decoded_product_kernel.py`).

What adapters add to gate and up comes from memory, rounded: two numbers of 16 bits for each output of a pair.

Bytes: the weight of each chosen expert, 2 x out_features x in_features in 16 bits, for each 16 of its pairs, or 64
where there are many; half in 8 bits, and 4 for each scale (offsets as many), 9/16 in groups of 32. A pair's inputs once
for each tile of outputs, from the L2 cache. Operations: 2 x pairs x out_features x in_features, and up to 16 times as
many where each of many experts has one pair: 16 a byte of floats, and with the conversion of each weight 33 a byte of
8-bit numbers, or 129 for tiles of 64; rounding adds eight for each of a tile's inputs. The time is that of reading the
weights until pairs are many.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairlead_engine.kernels.decoded_product_kernel import (
    BY_ROW,
    BY_TILE,
    FEW_ROWS,
    FLOATS,
    MANY_ROWS,
    PER_COLUMN,
    PER_ROW,
    PER_TILE,
    UNROUNDED,
    add_product,
    finished,
    some_inputs,
)
from fairlead_engine.kernels.expert_product import ExpertWeights
from fairlead_engine.kernels.gates import SILU, Gate
from fairlead_engine.kernels.rounded_rows import rounded_blocks
from fairlead_engine.kernels.rounded_rows_kernel import scales_of_rows
from fairlead_engine.kernels.routes import ExpertRouting, Routes

_MANY_PAIRS = 32
"""Mean pairs per expert from which on tiles are large."""
TILE_OUTPUTS = 64
"""Twice as many of gate and up."""
_FLOAT_INPUTS = 64
_MOST_INPUTS = {FEW_ROWS: 128, MANY_ROWS: 64}
"""Of a tile of 8-bit weights, by its pairs: bytes of a row."""
_TILE_COLUMNS = 32
"""With a separate scale for each column."""

UNGATED, SIDE_BY_SIDE, BY_TURNS, GELU_BESIDE, PLAIN = range(5)
GATED = (SIDE_BY_SIDE, BY_TURNS, GELU_BESIDE)
_BY_ROW: tl.constexpr = tl.constexpr(BY_ROW)
_UNGATED: tl.constexpr = tl.constexpr(UNGATED)
_PLAIN: tl.constexpr = tl.constexpr(PLAIN)
_SIDE_BY_SIDE: tl.constexpr = tl.constexpr(SIDE_BY_SIDE)
_BY_TURNS: tl.constexpr = tl.constexpr(BY_TURNS)
_GELU_BESIDE: tl.constexpr = tl.constexpr(GELU_BESIDE)


@triton.jit(do_not_specialize=["num_tokens"])  # type: ignore[untyped-decorator]
def expert_product_kernel(  # type: ignore[no-untyped-def]
    output,
    output_largest,
    x,
    x_largest,
    values,
    scales,
    offsets,
    groups,
    bias,
    order,
    counts,
    scores,
    added,
    num_tokens,
    out_features,
    INPUT_SIZE,
    x_stride,
    weight_stride,
    num_groups,
    alpha,
    limit,
    route_scale,
    least_sum,
    EACH: tl.constexpr,
    PADDED_EACH: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    PADDED_EXPERTS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    SCALING: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROUNDING: tl.constexpr,
    LARGEST: tl.constexpr,
    IS_INTEGER: tl.constexpr,
    GATE: tl.constexpr,
    HAS_ADDED: tl.constexpr,
    TELLS_LARGEST: tl.constexpr,
    IS_NORMALISED: tl.constexpr,
):
    """Program (tile of pairs, tile of outputs). With a gate x has a row for each token, outputs are half as many as the
    weight's rows, and `added` may be added before; plain, x has a row for each token, too; ungated, x has a row for
    each pair, and results are weighted."""
    IS_GATED: tl.constexpr = GATE != _UNGATED and GATE != _PLAIN
    tile = tl.program_id(0)
    e = tl.arange(0, PADDED_EXPERTS)
    count = tl.load(counts + e, mask=e < NUM_EXPERTS, other=0)
    num_tiles = (count + TILE_ROWS - 1) // TILE_ROWS
    tiles_end = tl.cumsum(num_tiles, 0)
    is_mine = (tiles_end - num_tiles <= tile) & (tile < tiles_end)  # of one expert, or of none
    expert = tl.sum(tl.where(is_mine, e, 0), 0).to(tl.int64)
    first = tl.sum(tl.where(is_mine, (tile - tiles_end + num_tiles) * TILE_ROWS, 0), 0)
    last = tl.sum(tl.where(is_mine, count, 0), 0)

    m, k = tl.arange(0, TILE_ROWS), tl.arange(0, TILE_INPUTS)
    n = tl.program_id(1) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    num_outputs = out_features
    if IS_GATED:
        num_outputs = out_features // 2
    is_pair, is_output = first + m < last, n < num_outputs
    pair = tl.load(order + expert * num_tokens + first + m, mask=is_pair, other=0).to(tl.int64)
    token = pair // EACH
    x_row = pair
    if GATE != _UNGATED:
        x_row = token
    rows = x + (x_row * x_stride)[None, :] + k[:, None]
    row = expert * out_features + n
    if GATE == _BY_TURNS:
        row += n
    row_scale = tl.zeros([TILE_ROWS], tl.float32)
    if ROUNDING == _BY_ROW:
        row_scale = scales_of_rows(tl.load(x_largest + x_row, mask=is_pair, other=1.0), LARGEST)
    up_row = row + 1
    if GATE != _BY_TURNS:
        up_row = row + num_outputs
    total = tl.zeros([TILE_OUTPUTS, TILE_ROWS], tl.float32)
    up = total
    stored, up_stored = values + (row * weight_stride)[:, None], values + (up_row * weight_stride)[:, None]
    for at in range(0, tl.where(first < last, INPUT_SIZE, 0), TILE_INPUTS):
        column = at + k
        is_column = k < TILE_INPUTS
        if not IS_EVEN:
            is_column = column < INPUT_SIZE
        is_x, is_weight = is_column[:, None] & is_pair[None, :], is_output[:, None] & is_column[None, :]
        some, x_scale = some_inputs(rows + at, is_x, row_scale, x_largest, is_pair, ROUNDING, LARGEST, IS_INTEGER)
        total = add_product(
            total, tl.load(stored + column[None, :], mask=is_weight, other=0.0), some, x_scale, row, is_output, at,
            column, is_column, scales, offsets, groups + expert * INPUT_SIZE, num_groups, 1, GROUP_SIZE, SCALING,
            HAS_OFFSETS, HAS_GROUPS, ROUNDING,
        )  # fmt: skip
        if IS_GATED:
            up = add_product(
                up, tl.load(up_stored + column[None, :], mask=is_weight, other=0.0), some, x_scale, up_row, is_output,
                at, column, is_column, scales, offsets, groups + expert * INPUT_SIZE, num_groups, 1, GROUP_SIZE,
                SCALING, HAS_OFFSETS, HAS_GROUPS, ROUNDING,
            )  # fmt: skip
    found = finished(total, row_scale, row, is_output, scales, bias, SCALING, ROUNDING, HAS_BIAS)
    if GATE == _UNGATED:
        score = tl.load(scores + pair, mask=is_pair, other=0.0)
        if IS_NORMALISED:
            each = tl.arange(0, PADDED_EACH)
            place = token[:, None] * EACH + each[None, :]
            of_token = tl.load(scores + place, mask=is_pair[:, None] & (each < EACH)[None, :], other=0.0)
            score = score / tl.where(is_pair, tl.sum(of_token, 1) + least_sum, 1.0)
        found *= (score * route_scale)[None, :]
    if IS_GATED:
        up = finished(up, row_scale, up_row, is_output, scales, bias, SCALING, ROUNDING, HAS_BIAS)
        if HAS_ADDED:
            place = added + (pair * out_features - expert * out_features)[None, :]
            is_added = is_output[:, None] & is_pair[None, :]
            found += tl.load(place + row[:, None], mask=is_added, other=0.0).to(tl.float32)
            up += tl.load(place + up_row[:, None], mask=is_added, other=0.0).to(tl.float32)
        # Rounded as torch's operations are, so that both ways give the same.
        gate = found.to(output.dtype.element_ty).to(tl.float32)
        up = up.to(output.dtype.element_ty).to(tl.float32)
        if GATE == _SIDE_BY_SIDE:
            found = (gate * tl.sigmoid(gate)).to(output.dtype.element_ty).to(tl.float32) * up
        elif GATE == _GELU_BESIDE:  # as in gates_kernel.py
            share = tl.maximum(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate), -80.0)
            found = (gate * tl.sigmoid(share)).to(output.dtype.element_ty).to(tl.float32) * up
        else:
            gate = tl.where(gate > limit, limit, gate)  # what is no number stays none
            up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
            found = tl.sigmoid(alpha * gate) * gate * (up + 1)
    found = found.to(output.dtype.element_ty)
    is_in = is_output[:, None] & is_pair[None, :]
    tl.store(output + (pair * num_outputs)[None, :] + n[:, None], found, mask=is_in)
    if TELLS_LARGEST:
        highest = tl.max(tl.where(is_in, tl.abs(found.to(tl.float32)), 0.0), 0)
        tl.atomic_max(output_largest + pair, highest, mask=is_pair)  # in whatever order


def gated_product(
    x: Tensor, weights: ExpertWeights, routes: Routes, gate: Gate = SILU, added: Tensor | None = None
) -> Tensor:
    output = torch.empty((routes.num_pairs, weights.values.shape[1] // 2), dtype=x.dtype, device=x.device)
    kind = GELU_BESIDE if gate.is_gelu else SIDE_BY_SIDE if gate.limit is None else BY_TURNS
    _launch(output, x, routes.largest, weights, routes, kind, gate, ExpertRouting(1), added)
    return output


def row_product(x: Tensor, weights: ExpertWeights, routes: Routes) -> Tensor:
    output = torch.empty((routes.num_pairs, weights.values.shape[1]), dtype=x.dtype, device=x.device)
    routes = routes._replace(largest=None, largest_within=None)
    _launch(output, x, None, weights, routes, PLAIN, SILU, ExpertRouting(1))
    return output


def weighted_product(rows: Tensor, weights: ExpertWeights, routes: Routes, routing: ExpertRouting) -> Tensor:
    output = torch.empty((*routes.experts.shape, weights.values.shape[1]), dtype=rows.dtype, device=rows.device)
    _launch(output, rows, routes.largest_within, weights, routes, UNGATED, SILU, routing)
    return output


def _launch(
    output: Tensor,
    x: Tensor,
    largest: Tensor | None,
    weights: ExpertWeights,
    routes: Routes,
    kind: int,
    gate: Gate,
    routing: ExpertRouting,
    added: Tensor | None = None,
) -> None:
    """`largest`: of the rows of x."""
    num_experts, out_features, in_features = weights.values.shape
    (num_tokens, each), num_pairs = routes.experts.shape, routes.num_pairs
    if not num_pairs:
        return
    tile_rows = MANY_ROWS if num_pairs >= _MANY_PAIRS * num_experts else FEW_ROWS
    most_tiles = (num_pairs + (tile_rows - 1) * min(num_experts, num_pairs)) // tile_rows
    shape = tile_shape(weights, tile_rows)
    if shape.rounding == UNROUNDED and weights.row_format is not None:  # no tile is a block
        x = rounded_blocks(x, weights.group_size, weights.row_format)
    scales = weights.values if weights.scales is None else weights.scales
    num_outputs = output.shape[-1]
    tells_largest = kind in GATED and routes.largest_within is not None
    expert_product_kernel[(most_tiles, triton.cdiv(num_outputs, TILE_OUTPUTS))](
        output,
        routes.scores if routes.largest_within is None else routes.largest_within,
        x,
        routes.scores if largest is None else largest,
        weights.values,
        scales,
        scales if weights.offsets is None else weights.offsets,
        routes.order if weights.groups is None else weights.groups,
        output if weights.bias is None else weights.bias,
        routes.order,
        routes.counts,
        routes.scores,
        output if added is None else added,
        num_tokens,
        out_features,
        in_features,
        x.stride(0) if len(x) > 1 else in_features,  # that of a single row may be anything
        weights.values.stride(1),
        scales.shape[2],
        gate.alpha,
        0.0 if gate.limit is None else gate.limit,
        routing.scale,
        routing.least_sum,
        EACH=each,
        PADDED_EACH=triton.next_power_of_2(each),
        NUM_EXPERTS=num_experts,
        PADDED_EXPERTS=triton.next_power_of_2(num_experts),
        GROUP_SIZE=shape.group_size,
        TILE_ROWS=tile_rows,
        TILE_OUTPUTS=TILE_OUTPUTS,
        TILE_INPUTS=shape.tile_inputs,
        IS_EVEN=in_features % shape.tile_inputs == 0,
        SCALING=shape.scaling,
        HAS_OFFSETS=weights.offsets is not None,
        HAS_GROUPS=weights.groups is not None,
        HAS_BIAS=weights.bias is not None,
        ROUNDING=shape.rounding,
        LARGEST=1.0 if weights.row_format is None else weights.row_format.largest,
        IS_INTEGER=weights.row_format is None or not weights.row_format.dtype.is_floating_point,
        GATE=kind,
        HAS_ADDED=added is not None,
        TELLS_LARGEST=tells_largest,
        IS_NORMALISED=routing.normalised,
        num_warps=num_warps(kind, shape, tile_rows),
        num_stages=num_stages(shape, tile_rows),
    )


class ExpertTiles(NamedTuple):
    """Layout of a weight's scales over its columns, and number of columns multiplied at a time."""

    scaling: int
    rounding: int
    group_size: int
    tile_inputs: int


def tile_shape(weights: ExpertWeights, tile_rows: int) -> ExpertTiles:
    """Shape of a product with tiles of `tile_rows`."""
    if weights.scales is None:
        return ExpertTiles(FLOATS, UNROUNDED, 0, _FLOAT_INPUTS)
    most_inputs, size, num_groups = _MOST_INPUTS[tile_rows], weights.group_size, weights.scales.shape[2]
    rounding = BY_ROW if weights.rounds_by_rows else UNROUNDED
    if weights.groups is not None:
        return ExpertTiles(PER_COLUMN, rounding, size, _TILE_COLUMNS)
    if num_groups == 1:
        scaling = PER_ROW if weights.offsets is None else PER_TILE
        return ExpertTiles(scaling, rounding, most_inputs * max(1, size), most_inputs)
    if weights.rounds_by_blocks and size in (16, 32, 64, 128):
        return ExpertTiles(PER_TILE, BY_TILE, size, size)
    for tile_inputs in (most_inputs, 64, 32, 16):
        if size % tile_inputs == 0:
            return ExpertTiles(PER_TILE, rounding, size, tile_inputs)
    return ExpertTiles(PER_COLUMN, rounding, size, _TILE_COLUMNS)


def num_stages(shape: ExpertTiles, tile_rows: int) -> int:
    """Tiles in flight at a time: fewer large ones."""
    return 2 if tile_rows == MANY_ROWS and shape.tile_inputs > 64 else 3


def num_warps(kind: int, shape: ExpertTiles, tile_rows: int) -> int:
    """Warps of 32 threads per tile: more for two large sums in their registers, or inputs that are rounded there."""
    return 8 if tile_rows == MANY_ROWS and (kind in GATED or shape.rounding == BY_TILE) else 4
