"""Rows scaled and rounded to 8 bits in one launch: Triton.

Bytes: a row is read once into registers, its numbers beyond 16,384 twice, and written once in 8 bits with 4 bytes of
scale: 3 x size in 16 bits. Operations: about eight per number, three a byte: the memory's time, or one launch's.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairlead_engine.kernels.rounded_rows import LEAST_SCALE, RowFormat

_LARGEST_TILE = 16384
"""Columns that a program holds in registers: 32 to a thread of 16 warps."""
_WARP_COLUMNS = 512
"""Two loads of 16 bytes for each thread of a warp."""
_MOST_WARPS = 16
_LEAST: tl.constexpr = tl.constexpr(LEAST_SCALE)
_ROUNDING: tl.constexpr = tl.constexpr(1.5 * 2.0**23)
"""Added to a float32 below 2^22 and taken away again, it leaves the nearest whole number; a multiple of it, the nearest
multiple. Rounding is thereby alike on every device, and in Triton's interpreter, whose own casts to 8-bit floats are
wrong where they carry."""
_EXPONENT: tl.constexpr = tl.constexpr(0x7F800000)
_SMALLEST_NORMAL: tl.constexpr = tl.constexpr(2.0**-6)
_FLOAT_STEP: tl.constexpr = tl.constexpr(2.0**-3)
"""Of e4m3: between numbers from 1 to 2."""


@triton.jit  # type: ignore[untyped-decorator]
def nearest(numbers, IS_INTEGER: tl.constexpr):  # type: ignore[no-untyped-def]
    """The nearest whole numbers, or e4m3 numbers, of float32 within the format's range; in float32."""
    rounding = _ROUNDING
    if not IS_INTEGER:
        power = (numbers.to(tl.int32, bitcast=True) & _EXPONENT).to(tl.float32, bitcast=True)
        rounding *= tl.maximum(power, _SMALLEST_NORMAL) * _FLOAT_STEP
    return (numbers + rounding) - rounding


@triton.jit  # type: ignore[untyped-decorator]
def scales_of_rows(largest, LARGEST: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of rows whose largest magnitudes these are, float32."""
    return tl.maximum(largest * (1 / LARGEST), _LEAST)


@triton.jit  # type: ignore[untyped-decorator]
def _numbers(row, first, ROW_SIZE, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile of a row in float32, 0 behind its end."""
    column = first + tl.arange(0, TILE)
    return tl.load(row + column, mask=column < ROW_SIZE, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _write(  # type: ignore[no-untyped-def]
    output, first, numbers, scale, ROW_SIZE, IS_INTEGER: tl.constexpr, TILE: tl.constexpr
):
    column = first + tl.arange(0, TILE)
    rounded = nearest(numbers * (1 / scale), IS_INTEGER)
    tl.store(output + column, rounded.to(output.dtype.element_ty), mask=column < ROW_SIZE)


@triton.jit  # type: ignore[untyped-decorator]
def rounded_rows_kernel(  # type: ignore[no-untyped-def]
    output, scales, x, x_stride, ROW_SIZE, LARGEST: tl.constexpr, IS_INTEGER: tl.constexpr, TILE: tl.constexpr
):
    """Program (row). The row's first tile, in general the whole row, stays in registers."""
    index = tl.program_id(0).to(tl.int64)
    row, output = x + index * x_stride, output + index * ROW_SIZE
    held = _numbers(row, 0, ROW_SIZE, TILE)
    highest, spoilt = tl.abs(held), held - held  # 0, or NaN where a number is not finite
    for first in range(TILE, ROW_SIZE, TILE):
        numbers = _numbers(row, first, ROW_SIZE, TILE)
        highest = tl.maximum(highest, tl.abs(numbers))
        spoilt += numbers - numbers
    scale = scales_of_rows(tl.max(highest, 0), LARGEST) + tl.sum(spoilt, 0)
    tl.store(scales + index, scale)
    _write(output, 0, held, scale, ROW_SIZE, IS_INTEGER, TILE)
    for first in range(TILE, ROW_SIZE, TILE):
        _write(output, first, _numbers(row, first, ROW_SIZE, TILE), scale, ROW_SIZE, IS_INTEGER, TILE)


def _tile(num_columns: int) -> tuple[int, int]:
    """Columns that a program holds, and its warps."""
    tile = min(triton.next_power_of_2(num_columns), _LARGEST_TILE)
    return tile, max(1, min(tile // _WARP_COLUMNS, _MOST_WARPS))


def rounded_rows(x: Tensor, row_format: RowFormat, least_rows: int = 0) -> tuple[Tensor, Tensor]:
    """As `kernels.rounded_rows.rounded_rows`; columns lie side by side."""
    num_rows, num_columns = x.shape
    output = torch.empty((max(num_rows, least_rows), num_columns), dtype=row_format.dtype, device=x.device)
    scales = torch.empty((num_rows, 1), dtype=torch.float32, device=x.device)
    if num_rows:
        tile, num_warps = _tile(num_columns)
        rounded_rows_kernel[(num_rows,)](
            output,
            scales,
            x,
            x.stride(0) if num_rows > 1 else num_columns,  # that of a single row may be anything
            num_columns,
            LARGEST=row_format.largest,
            IS_INTEGER=not row_format.dtype.is_floating_point,
            TILE=tile,
            num_warps=num_warps,
        )
    return output, scales
