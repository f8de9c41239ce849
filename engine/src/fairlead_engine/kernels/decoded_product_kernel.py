"""Products with a weight of integers or 8-bit floats, decoded tile by tile on its way to the tensor cores: Triton.

The weight is the first operand of a product and goes through registers, so that decoding needs no shared memory. Few
rows leave programs for few tiles: inputs are then split among programs too, and whichever of a tile's programs comes
last adds the parts, in a fixed order, without a second launch.

Numbers of 8 bits are exact in 16: tiles of weights are multiplied unscaled, and the scale of a group of columns is
applied to the sums, which are fewer; with several groups to a tile, each number is scaled before the product. Rows that
are rounded to e4m3 are multiplied as float16, which has all of its numbers, and scaled afterwards like weights.

Bytes: the weight once for each tile of rows, out_features x in_features in 8 bits or half of that in 4, and 4 for each
scale (offsets as many); the rows once for each tile of outputs, from the L2 cache. Operations: 2 x rows x out_features
x in_features, 32 a byte of 8-bit numbers for 16 rows and 64 of 4 bits, and two to five instructions for each number's
decoding: the time is that of reading the weight for few rows.

For rows so many that decoding for each tile of them takes longer than once for all, a weight is decoded into memory:
its bytes are read, and two written for each number.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairlead_engine.kernels.decoded_product import CodedWeight
from fairlead_engine.kernels.rounded_rows_kernel import nearest, rounded_rows, scales_of_rows

FLOATS, PER_ROW, PER_TILE, PER_COLUMN = range(4)
"""How many scales a tile of a weight has."""
UNROUNDED, BY_ROW, ROWS_BEFORE, BY_TILE, TILES_BEFORE = range(5)
"""How rows are rounded: not, as a whole or by tile of inputs, within or before."""
_PER_ROW: tl.constexpr = tl.constexpr(PER_ROW)
_PER_TILE: tl.constexpr = tl.constexpr(PER_TILE)
_UNROUNDED: tl.constexpr = tl.constexpr(UNROUNDED)
_BY_ROW: tl.constexpr = tl.constexpr(BY_ROW)
_ROWS_BEFORE: tl.constexpr = tl.constexpr(ROWS_BEFORE)
_BY_TILE: tl.constexpr = tl.constexpr(BY_TILE)
_TILES_BEFORE: tl.constexpr = tl.constexpr(TILES_BEFORE)


@triton.jit  # type: ignore[untyped-decorator]
def scaled(  # type: ignore[no-untyped-def]
    weight, row, is_row, group, is_column, scales, offsets, row_stride, group_stride, HAS_OFFSETS: tl.constexpr
):
    """What numbers [outputs, inputs] of a weight mean, float32, by the group of each column."""
    place = (row * row_stride)[:, None] + (group * group_stride)[None, :]
    is_in = is_row[:, None] & is_column[None, :]
    found = weight.to(tl.float32) * tl.load(scales + place, mask=is_in, other=0.0).to(tl.float32)
    if HAS_OFFSETS:
        found += tl.load(offsets + place, mask=is_in, other=0.0).to(tl.float32)
    return found


@triton.jit  # type: ignore[untyped-decorator]
def add_product(  # type: ignore[no-untyped-def]
    total,
    weight,
    some,
    x_scale,
    row,
    is_row,
    at,
    column,
    is_column,
    scales,
    offsets,
    groups,
    row_stride,
    group_stride,
    GROUP_SIZE: tl.constexpr,
    SCALING: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
    ROUNDING: tl.constexpr,
):
    """total [outputs, rows] plus weight [outputs, inputs], of `row` and `column`, times some inputs [inputs, rows]."""
    if SCALING <= _PER_ROW:
        total = tl.dot(weight.to(some.dtype), some, total, input_precision="tf32x3")
    elif SCALING == _PER_TILE:
        place = row * row_stride + at // GROUP_SIZE * group_stride
        scale = tl.load(scales + place, mask=is_row, other=0.0).to(tl.float32)
        product = tl.dot(weight.to(some.dtype), some, input_precision="tf32x3") * scale[:, None]
        if HAS_OFFSETS:
            offset = tl.load(offsets + place, mask=is_row, other=0.0).to(tl.float32)
            product += offset[:, None] * tl.sum(some.to(tl.float32), 0)[None, :]
        if ROUNDING >= _BY_TILE:
            product *= x_scale[None, :]
        total += product
    else:
        if HAS_GROUPS:
            group = tl.load(groups + column, mask=is_column, other=0)
        else:
            group = column // GROUP_SIZE
        decoded = scaled(
            weight, row, is_row, group, is_column, scales, offsets, row_stride, group_stride, HAS_OFFSETS
        )  # fmt: skip
        total = tl.dot(decoded.to(some.dtype), some, total, input_precision="tf32x3")
    return total


@triton.jit  # type: ignore[untyped-decorator]
def some_inputs(  # type: ignore[no-untyped-def]
    rows, is_in, x_scale, x_scales, is_x, ROUNDING: tl.constexpr, LARGEST: tl.constexpr, IS_INTEGER: tl.constexpr
):
    """Inputs [inputs, rows] at these addresses, rounded where they are not, and the scales of their rows."""
    some = tl.load(rows, mask=is_in, other=0.0)
    if (ROUNDING == _BY_ROW) | (ROUNDING == _BY_TILE):
        wide = some.to(tl.float32)
        if ROUNDING == _BY_TILE:
            x_scale = scales_of_rows(tl.max(tl.abs(wide), 0), LARGEST)
        rounded = nearest(wide * (1 / x_scale)[None, :], IS_INTEGER)
        some = rounded.to(tl.float16) if ROUNDING == _BY_TILE else rounded.to(some.dtype)
    elif ROUNDING != _UNROUNDED:
        some = some.to(tl.float16)
        if ROUNDING == _TILES_BEFORE:
            x_scale = tl.load(x_scales, mask=is_x, other=0.0)
    return some, x_scale


@triton.jit  # type: ignore[untyped-decorator]
def finished(  # type: ignore[no-untyped-def]
    total, x_scale, row, is_row, scales, bias,
    SCALING: tl.constexpr, ROUNDING: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """The steps after the sum [outputs, rows] that are the same for all columns."""
    if SCALING == _PER_ROW:
        total *= tl.load(scales + row, mask=is_row, other=0.0).to(tl.float32)[:, None]
    if (ROUNDING == _BY_ROW) | (ROUNDING == _ROWS_BEFORE):
        total *= x_scale[None, :]
    if HAS_BIAS:
        total += tl.load(bias + row, mask=is_row, other=0.0).to(tl.float32)[:, None]
    return total


@triton.jit
def whole_numbers(nibbles, like):  # type: ignore[no-untyped-def]
    """Numbers from -8 to 7, in the type of `like`, from int16 with eight more: as the lowest bits of a float
    above, from which that is subtracted."""
    if like.dtype == tl.bfloat16:
        found = (nibbles | 0x4300).to(tl.bfloat16, bitcast=True) - 136.0
    elif like.dtype == tl.float16:
        found = (nibbles | 0x6400).to(tl.float16, bitcast=True) - 1032.0
    else:
        found = nibbles.to(like.dtype) - 8.0
    return found


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def decoded_product_kernel(  # type: ignore[no-untyped-def]
    output,
    parts,
    arrivals,
    x,
    x_scales,
    values,
    scales,
    offsets,
    bias,
    num_rows,
    OUTPUT_SIZE,
    INPUT_SIZE,
    x_stride,
    GROUP_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    IS_PACKED: tl.constexpr,
    SCALING: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROUNDING: tl.constexpr,
    LARGEST: tl.constexpr,
    IS_INTEGER: tl.constexpr,
):
    """Program (tile of rows, tile of outputs, part of the inputs). `INPUT_SIZE`: bytes of a row of the weight."""
    m = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    n = tl.program_id(1) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    k = tl.arange(0, TILE_INPUTS)
    is_x, is_output = m < num_rows, n < OUTPUT_SIZE
    rows = x + (m.to(tl.int64) * x_stride)[None, :] + k[:, None]
    tile_scales = x_scales + m * tl.cdiv(INPUT_SIZE, TILE_INPUTS)
    stored = values + (n.to(tl.int64) * INPUT_SIZE)[:, None] + k[None, :]
    share = tl.cdiv(INPUT_SIZE, SPLITS * TILE_INPUTS) * TILE_INPUTS
    first = tl.program_id(2) * share
    x_scale = tl.zeros([TILE_ROWS], tl.float32)
    if ROUNDING == _ROWS_BEFORE:
        x_scale = tl.load(x_scales + m, mask=is_x, other=0.0)
    total = tl.zeros([TILE_OUTPUTS, TILE_ROWS], tl.float32)
    for at in range(first, tl.minimum(first + share, INPUT_SIZE), TILE_INPUTS):
        column = at + k
        is_column = k < TILE_INPUTS
        if not IS_EVEN:
            is_column = column < INPUT_SIZE
        is_in = is_column[:, None] & is_x[None, :]
        weight = tl.load(stored + at, mask=is_output[:, None] & is_column[None, :], other=0.0)
        scale_at = tile_scales + at // TILE_INPUTS
        some, x_scale = some_inputs(rows + at, is_in, x_scale, scale_at, is_x, ROUNDING, LARGEST, IS_INTEGER)
        if IS_PACKED:
            wide, above = weight.to(tl.int16), at + INPUT_SIZE
            total = add_product(
                total, whole_numbers(wide & 15, some), some, x_scale, n, is_output, at, column, is_column, scales,
                offsets, scales, 1, OUTPUT_SIZE, GROUP_SIZE, SCALING, HAS_OFFSETS, False, ROUNDING,
            )  # fmt: skip
            some, x_scale = some_inputs(
                rows + above, is_in, x_scale, scale_at, is_x, ROUNDING, LARGEST, IS_INTEGER
            )  # fmt: skip
            total = add_product(
                total, whole_numbers(wide >> 4, some), some, x_scale, n, is_output, above, above + k, is_column, scales,
                offsets, scales, 1, OUTPUT_SIZE, GROUP_SIZE, SCALING, HAS_OFFSETS, False, ROUNDING,
            )  # fmt: skip
        else:
            total = add_product(
                total, weight, some, x_scale, n, is_output, at, column, is_column, scales, offsets, scales, 1,
                OUTPUT_SIZE, GROUP_SIZE, SCALING, HAS_OFFSETS, False, ROUNDING,
            )  # fmt: skip
    place = (m.to(tl.int64) * OUTPUT_SIZE)[None, :] + n[:, None]
    is_in = is_output[:, None] & is_x[None, :]
    is_last = True
    if SPLITS > 1:
        part_size = num_rows.to(tl.int64) * OUTPUT_SIZE
        tl.store(parts + tl.program_id(2) * part_size + place, total, mask=is_in)
        tl.debug_barrier()  # all of the program's numbers are there before it says so
        arrival = arrivals + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        is_last = tl.atomic_add(arrival, 1) == SPLITS - 1
        if is_last:
            total = tl.zeros([TILE_OUTPUTS, TILE_ROWS], tl.float32)
            for part in tl.static_range(SPLITS):
                total += tl.load(parts + part * part_size + place, mask=is_in, other=0.0, cache_modifier=".cg")
            tl.store(arrival, 0)
    if is_last:
        total = finished(total, x_scale, n, is_output, scales, bias, SCALING, ROUNDING, HAS_BIAS)
        tl.store(output + place, total.to(output.dtype.element_ty), mask=is_in)


@triton.jit(do_not_specialize=["first", "end"])  # type: ignore[untyped-decorator]
def decoded_kernel(  # type: ignore[no-untyped-def]
    output,
    values,
    scales,
    offsets,
    first,
    end,
    OUTPUT_SIZE,
    INPUT_SIZE,
    GROUP_SIZE: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
    IS_PACKED: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
):
    """Program (tile of outputs from `first` to `end`, tile of inputs)."""
    n = first + tl.program_id(0) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    column = tl.program_id(1) * TILE_INPUTS + tl.arange(0, TILE_INPUTS)
    is_output, is_column, row = n < end, column < INPUT_SIZE, n.to(tl.int64)
    is_in = is_output[:, None] & is_column[None, :]
    weight = tl.load(values + (row * INPUT_SIZE)[:, None] + column[None, :], mask=is_in, other=0.0)
    row_size = INPUT_SIZE
    if IS_PACKED:
        row_size *= 2
    place = output + ((row - first) * row_size)[:, None] + column[None, :]
    for half in tl.static_range(2 if IS_PACKED else 1):
        numbers, at = weight, half * INPUT_SIZE
        if IS_PACKED:
            numbers = ((weight >> 4 * half) & 15).to(tl.int8) - 8
        found = scaled(
            numbers, row, is_output, (column + at) // GROUP_SIZE, is_column, scales, offsets, 1, OUTPUT_SIZE,
            HAS_OFFSETS,
        )  # fmt: skip
        tl.store(place + at, found.to(output.dtype.element_ty), mask=is_in)


FEW_ROWS, MANY_ROWS = 16, 64
"""Rows to a tile: tensor cores multiply by 8 of them at least."""
_TILE_OUTPUTS = 64
"""Tensor cores multiply 64 outputs at a time."""
_MOST_INPUTS = 128
"""Of a tile: bytes of a row of the weight."""
_ROUNDED_WITHIN = FEW_ROWS
"""Most rows that are rounded to e4m3 for each tile of outputs anew, to save a launch."""
_DECODED_OUTPUTS = 32
"""To a program that decodes into memory."""
_PROGRAMS = 528
"""Fewest that inputs are split for, if there are as many tiles: four to a multiprocessor of the largest GPUs."""
_LEAST_TILES = 2
"""Of inputs, to a program."""
MOST_ARRIVALS = _PROGRAMS
"""Most tiles of outputs and rows whose inputs are split."""


class ProductTiles(NamedTuple):
    """How a product is divided."""

    rows: int
    outputs: int
    inputs: int
    """Columns of stored values: bytes."""
    splits: int
    """Programs among which the inputs of a tile of outputs are divided."""
    scaling: int
    num_warps: int
    num_stages: int
    """Tiles in flight at a time."""


def product_tiles(weight: CodedWeight, num_rows: int) -> ProductTiles:
    """For that number of rows."""
    rows = FEW_ROWS if num_rows <= FEW_ROWS else MANY_ROWS
    out_features, width = weight.values.shape
    scaling, inputs = scaling_of(weight, _MOST_INPUTS // 2 if weight.is_packed and rows == MANY_ROWS else _MOST_INPUTS)
    tiles = triton.cdiv(out_features, _TILE_OUTPUTS) * triton.cdiv(num_rows, rows)
    most = max(1, triton.cdiv(width, inputs) // _LEAST_TILES)
    splits = 1
    while splits < most and tiles * splits * 2 <= _PROGRAMS + tiles:
        splits *= 2
    return ProductTiles(rows, _TILE_OUTPUTS, inputs, min(splits, most), scaling, 4, num_stages(rows))


def num_stages(rows: int) -> int:
    """Of tiles of so many rows: more of small ones."""
    return 4 if rows == FEW_ROWS else 3


def scaling_of(weight: CodedWeight, most_inputs: int) -> tuple[int, int]:
    """How many scales a tile has, and the columns of stored values to a tile, at most `most_inputs`."""
    width, size = weight.values.shape[1], weight.group_size
    if len(weight.scales) == 1 and weight.offsets is None:
        return PER_ROW, most_inputs
    if weight.row_format is not None:  # a tile is what is rounded together
        return PER_TILE, size
    for inputs in (128, 64, 32, 16):
        if inputs <= most_inputs and size % inputs == 0 and (not weight.is_packed or width % inputs == 0):
            return PER_TILE, inputs
    return PER_COLUMN, 32


def can_multiply(weight: CodedWeight) -> bool:
    """Whether the kernel takes such groups."""
    by_groups = weight.row_format is not None and len(weight.scales) > 1
    return not by_groups or weight.group_size in (16, 32, 64, 128)


def decoded_product(x: Tensor, weight: CodedWeight, bias: Tensor | None = None) -> Tensor:
    """As `kernels.decoded_product.decoded_product`; the numbers of a row of x lie side by side, and `can_multiply` the
    weight."""
    (num_rows, in_features), (out_features, width) = x.shape, weight.values.shape
    output = torch.empty((num_rows, out_features), dtype=x.dtype, device=x.device)
    if not num_rows:
        return output
    tiles, rounding, x_scales = product_tiles(weight, num_rows), UNROUNDED, weight.scales
    if weight.row_format is not None:
        rounding, size = ROWS_BEFORE, in_features
        if tiles.scaling != PER_ROW:
            size = weight.group_size
            rounding = TILES_BEFORE if num_rows > _ROUNDED_WITHIN and in_features % size == 0 else BY_TILE
        if rounding != BY_TILE:
            x, x_scales = rounded_rows(x.reshape(-1, size), weight.row_format)
            x = x.view(num_rows, in_features)
    grid = triton.cdiv(num_rows, tiles.rows), triton.cdiv(out_features, tiles.outputs), tiles.splits
    parts, arrivals = x_scales, weight.arrivals
    if tiles.splits > 1:
        parts = torch.empty((tiles.splits, num_rows, out_features), dtype=torch.float32, device=x.device)
        if arrivals is None:
            arrivals = torch.zeros(grid[0] * grid[1], dtype=torch.int32, device=x.device)
    decoded_product_kernel[grid](
        output,
        parts,
        output if arrivals is None else arrivals,
        x,
        x_scales,
        weight.values,
        weight.scales,
        weight.scales if weight.offsets is None else weight.offsets,
        output if bias is None else bias,
        num_rows,
        out_features,
        width,
        x.stride(0) if num_rows > 1 else in_features,  # that of a single row may be anything
        GROUP_SIZE=weight.group_size,
        TILE_ROWS=tiles.rows,
        TILE_OUTPUTS=tiles.outputs,
        TILE_INPUTS=tiles.inputs,
        SPLITS=tiles.splits,
        IS_EVEN=width % tiles.inputs == 0,
        IS_PACKED=weight.is_packed,
        SCALING=tiles.scaling,
        HAS_OFFSETS=weight.offsets is not None,
        HAS_BIAS=bias is not None,
        ROUNDING=rounding,
        LARGEST=1.0 if weight.row_format is None else weight.row_format.largest,
        IS_INTEGER=weight.row_format is None or not weight.row_format.dtype.is_floating_point,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return output


def decoded(weight: CodedWeight, rows: slice, dtype: torch.dtype) -> Tensor:
    """As `kernels.decoded_product.decoded`."""
    first, end, _ = rows.indices(len(weight.values))
    output = torch.empty((end - first, weight.in_features), dtype=dtype, device=weight.values.device)
    width = weight.values.shape[1]
    grid = triton.cdiv(end - first, _DECODED_OUTPUTS), triton.cdiv(width, _MOST_INPUTS)
    if end > first:
        decoded_kernel[grid](
            output,
            weight.values,
            weight.scales,
            weight.scales if weight.offsets is None else weight.offsets,
            first,
            end,
            len(weight.values),
            width,
            GROUP_SIZE=weight.group_size,
            TILE_OUTPUTS=_DECODED_OUTPUTS,
            TILE_INPUTS=_MOST_INPUTS,
            IS_PACKED=weight.is_packed,
            HAS_OFFSETS=weight.offsets is not None,
        )
    return output
