"""Rows scaled and rounded to 8 bits in one launch: Triton.

Bytes: a row is read twice, the second time from the L1 cache, and written once in 8 bits with 4 bytes of scale: 3 x
size in 16 bits. Operations: about eight per number, three a byte: the memory's time, or one launch's.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairlead_engine.kernels.rounded_rows import LEAST_SCALE, RowFormat

_TILE = 1024
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
def rounded_rows_kernel(  # type: ignore[no-untyped-def]
    output, scales, x, x_stride, ROW_SIZE, LARGEST: tl.constexpr, IS_INTEGER: tl.constexpr, TILE: tl.constexpr
):
    """Program (row)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, TILE)
    highest, spoilt = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
    for at in range(0, ROW_SIZE, TILE):
        wide = tl.load(x + row * x_stride + at + column, mask=at + column < ROW_SIZE, other=0.0).to(tl.float32)
        highest = tl.maximum(highest, tl.abs(wide))
        spoilt += wide - wide  # 0, or NaN where a number is not finite
    scale = scales_of_rows(tl.max(highest, 0), LARGEST) + tl.sum(spoilt, 0)
    tl.store(scales + row, scale)
    for at in range(0, ROW_SIZE, TILE):
        is_in = at + column < ROW_SIZE
        wide = tl.load(x + row * x_stride + at + column, mask=is_in, other=0.0).to(tl.float32)
        rounded = nearest(wide * (1 / scale), IS_INTEGER)
        tl.store(output + row * ROW_SIZE + at + column, rounded.to(output.dtype.element_ty), mask=is_in)


def rounded_rows(x: Tensor, row_format: RowFormat, least_rows: int = 0) -> tuple[Tensor, Tensor]:
    """As `kernels.rounded_rows.rounded_rows`; columns lie side by side."""
    num_rows, num_columns = x.shape
    output = torch.empty((max(num_rows, least_rows), num_columns), dtype=row_format.dtype, device=x.device)
    scales = torch.empty((num_rows, 1), dtype=torch.float32, device=x.device)
    if num_rows:
        rounded_rows_kernel[(num_rows,)](
            output,
            scales,
            x,
            x.stride(0) if num_rows > 1 else num_columns,  # that of a single row may be anything
            num_columns,
            LARGEST=row_format.largest,
            IS_INTEGER=not row_format.dtype.is_floating_point,
            TILE=_TILE,
        )
    return output, scales
