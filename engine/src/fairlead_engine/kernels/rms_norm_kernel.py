"""Root mean square normalisation in one pass over each row, after adding to the residual stream if asked: Triton.

Bytes: a row is read once and written once, 4 x size in 16 bits; with an update two are read and two written, 8 x size;
nothing else. An update in parts adds 2 x size for each further part. Operations: about six per number: the memory's
time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def normalise_kernel(  # type: ignore[no-untyped-def]
    output,
    total,
    x,
    update,
    weight,
    eps,
    row_stride,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    NUM_PARTS: tl.constexpr,
):
    """Program (row)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED_SIZE)
    is_in = column < SIZE
    values = tl.load(x + row * row_stride + column, mask=is_in, other=0.0)
    if NUM_PARTS > 0:
        some = tl.load(update + row * NUM_PARTS * SIZE + column, mask=is_in, other=0.0)
        if NUM_PARTS > 1:
            summed = some.to(tl.float32)
            for part in range(1, NUM_PARTS):
                place = update + (row * NUM_PARTS + part) * SIZE + column
                summed += tl.load(place, mask=is_in, other=0.0).to(tl.float32)
            some = summed.to(values.dtype)
        values += some
        tl.store(total + row * SIZE + column, values, mask=is_in)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    scaled = (wide * scale) * tl.load(weight + column, mask=is_in, other=0.0).to(tl.float32)
    tl.store(output + row * SIZE + column, scaled.to(output.dtype.element_ty), mask=is_in)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return _launch(rows, None, weight, eps)[0].view(x.shape)


def add_rms_norm(update: Tensor, stream: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _launch(stream, update.contiguous(), weight, eps)


def _launch(x: Tensor, update: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x and update [rows, size], whose columns lie side by side; or the update's parts [rows, parts, size]."""
    num_rows, size = x.shape
    output = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    total = output if update is None else torch.empty_like(output)
    if num_rows:
        padded_size = triton.next_power_of_2(size)
        normalise_kernel[(num_rows,)](
            output,
            total,
            x,
            output if update is None else update,
            weight,
            eps,
            x.stride(0),
            SIZE=size,
            PADDED_SIZE=padded_size,
            NUM_PARTS=0 if update is None else update.numel() // (num_rows * size),
            num_warps=min(16, max(1, padded_size // 512)),
        )
    return output, total
