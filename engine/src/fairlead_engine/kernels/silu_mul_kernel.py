"""The gate of a gated feed-forward layer in one pass: Triton. Reads gate and up once and writes their product once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024


@triton.jit  # type: ignore[untyped-decorator]
def gate_kernel(output, gate_up, SIZE: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Program (row, tile of columns)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_in = column < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + column, mask=is_in, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + column, mask=is_in, other=0.0)
    # Rounded between the two as torch's two operations do, so that both ways give the same.
    opened = (gate * tl.sigmoid(gate)).to(up.dtype)
    tl.store(output + row * SIZE + column, opened * up, mask=is_in)


def silu_mul(gate_up: Tensor) -> Tensor:
    """As `kernels.silu_mul.silu_mul`."""
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    output = torch.empty((num_rows, size), dtype=gate_up.dtype, device=gate_up.device)
    if num_rows:
        gate_kernel[(num_rows, triton.cdiv(size, _TILE))](output, gate_up.contiguous(), SIZE=size, TILE=_TILE)
    return output
