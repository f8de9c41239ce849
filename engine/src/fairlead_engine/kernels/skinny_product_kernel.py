"""A product of at most 16 rows with a weight that is streamed once, in one launch: Triton.

A program has a few outputs of all rows. Their inputs are split among its warps, and the warps' sums are added in a
fixed order: no atomics, no second launch. Rows are padded to 16 and tiles follow from the weight's shape alone: a row's
result does not depend on the number of rows.

Bytes: the weight once, 2 x out_features x in_features in 16 bits; the rows once for each program, from the L2 cache: up
to as much again with 16 rows and 16 outputs to a program. Operations: 2 x rows x out_features x in_features, at most 16
a byte: the time is that of reading the weight.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairlead_engine.kernels.skinny_product import MOST_ROWS

_NUM_WARPS = 4
_NUM_STAGES = 4
"""Tiles of the weight in flight at a time: 32 KiB and more to a program."""
_TILE_INPUTS = 64
"""Inputs of a warp at a time: 128 bytes of a row of the weight in 16 bits."""
_MANY_OUTPUTS = 8192
"""Outputs from which on programs of 32 are still about two for each multiprocessor of the largest GPUs."""


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def skinny_product_kernel(  # type: ignore[no-untyped-def]
    output,
    x,
    weight,
    bias,
    num_rows,
    out_features,
    INPUT_SIZE,
    x_stride,
    weight_stride,
    ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
    WAYS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Program (tile of outputs)."""
    way, m, k = tl.arange(0, WAYS), tl.arange(0, ROWS), tl.arange(0, TILE_INPUTS)
    n = tl.program_id(0) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    is_row, is_output = m < num_rows, n < out_features
    column = way[:, None] * TILE_INPUTS + k[None, :]
    rows = x + (m * x_stride)[None, :, None] + column[:, None, :]
    outputs = weight + (n.to(tl.int64) * weight_stride)[None, None, :] + column[:, :, None]
    sums = tl.zeros([WAYS, ROWS, TILE_OUTPUTS], tl.float32)
    for first in range(0, INPUT_SIZE, WAYS * TILE_INPUTS):
        is_of_x, is_of_weight = is_row[None, :, None], is_output[None, None, :]
        if not IS_EVEN:
            is_in = column + first < INPUT_SIZE
            is_of_x, is_of_weight = is_of_x & is_in[:, None, :], is_of_weight & is_in[:, :, None]
        some = tl.load(rows + first, mask=is_of_x, other=0.0)
        weights = tl.load(outputs + first, mask=is_of_weight, other=0.0)
        sums += tl.dot(some, weights, input_precision="tf32x3")
    total = tl.sum(sums, 0)
    if HAS_BIAS:
        total += tl.load(bias + n, mask=is_output, other=0.0).to(tl.float32)[None, :]
    place = output + (m * out_features)[:, None] + n[None, :]
    tl.store(place, total.to(output.dtype.element_ty), mask=is_row[:, None] & is_output[None, :])


def skinny_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As `kernels.skinny_product.skinny_product`; the numbers of a row of x and weight lie side by side."""
    (num_rows, in_features), out_features = x.shape, len(weight)
    output = torch.empty((num_rows, out_features), dtype=x.dtype, device=x.device)
    if num_rows:
        tile_outputs = 32 if out_features >= _MANY_OUTPUTS else 16
        skinny_product_kernel[(triton.cdiv(out_features, tile_outputs),)](
            output,
            x,
            weight,
            output if bias is None else bias,
            num_rows,
            out_features,
            in_features,
            x.stride(0) if num_rows > 1 else in_features,  # that of a single row may be anything
            weight.stride(0),
            ROWS=MOST_ROWS,
            TILE_OUTPUTS=tile_outputs,
            TILE_INPUTS=_TILE_INPUTS,
            WAYS=_NUM_WARPS,
            IS_EVEN=in_features % (_NUM_WARPS * _TILE_INPUTS) == 0,
            HAS_BIAS=bias is not None,
            num_warps=_NUM_WARPS,
            num_stages=_NUM_STAGES,
        )
    return output
