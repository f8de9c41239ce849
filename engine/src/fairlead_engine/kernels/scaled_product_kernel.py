"""The sums of a product of integers times the scales of both sides, in one launch: Triton.

Bytes: each sum is read once and its number written once, 6 a number in 16 bits, where torch's three operations move 26.
Operations: three per number, one for two bytes: the memory's time, or one launch's.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024


@triton.jit  # type: ignore[untyped-decorator]
def scaled_product_kernel(  # type: ignore[no-untyped-def]
    output, sums, row_scales, column_scales, bias, ROW_SIZE, HAS_BIAS: tl.constexpr, TILE: tl.constexpr
):
    """Program (row, tile of columns)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_in = column < ROW_SIZE
    found = tl.load(sums + row * ROW_SIZE + column, mask=is_in, other=0).to(tl.float32)
    found = found * tl.load(column_scales + column, mask=is_in, other=0.0) * tl.load(row_scales + row)
    if HAS_BIAS:
        found += tl.load(bias + column, mask=is_in, other=0.0).to(tl.float32)
    tl.store(output + row * ROW_SIZE + column, found.to(output.dtype.element_ty), mask=is_in)


def scaled_product(
    sums: Tensor, row_scales: Tensor, column_scales: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """As `kernels.scaled_product.scaled_product`; columns lie side by side."""
    num_rows, num_columns = len(row_scales), sums.shape[1]
    output = torch.empty((num_rows, num_columns), dtype=dtype, device=sums.device)
    if num_rows:
        scaled_product_kernel[(num_rows, triton.cdiv(num_columns, _TILE))](
            output,
            sums,
            row_scales,
            column_scales,
            output if bias is None else bias,
            num_columns,
            HAS_BIAS=bias is not None,
            TILE=_TILE,
        )
    return output
