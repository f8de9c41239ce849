"""The likeliest token of each row in two launches, and chosen tokens to their slots in one: Triton.

Parts of a row are searched by programs of their own: a single row fills a third of a device. A NaN counts as infinite,
and a row whose largest logit is infinite has no token.

Bytes: logits once, 2 or 4 x vocabulary for a row, from the L2 cache behind their product, and 8 for each part, written
and read once. Operations: four per logit, two a byte in 16 bits: the memory's time, or two launches'.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 4096
_ROWS = 128
"""Of one program that writes tokens to their slots."""


@triton.jit  # type: ignore[untyped-decorator]
def parts_kernel(  # type: ignore[no-untyped-def]
    highest, places, logits, row_stride, VOCAB_SIZE, NUM_PARTS: tl.constexpr, TILE: tl.constexpr
):
    """Program (row, part): the largest logit of a part, and the first column with it."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = part * TILE + tl.arange(0, TILE)
    x = tl.load(logits + row * row_stride + column, mask=column < VOCAB_SIZE, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("inf"))
    most = tl.max(x, 0)
    tl.store(highest + row * NUM_PARTS + part, most)
    tl.store(places + row * NUM_PARTS + part, tl.min(tl.where(x == most, column, VOCAB_SIZE), 0))


@triton.jit  # type: ignore[untyped-decorator]
def likeliest_kernel(  # type: ignore[no-untyped-def]
    token_ids, highest, places, NUM_PARTS: tl.constexpr, PADDED_PARTS: tl.constexpr
):
    """Program (row): the token of the part with the largest logit."""
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED_PARTS)
    each_most = tl.load(highest + row * NUM_PARTS + part, mask=part < NUM_PARTS, other=float("-inf"))
    place = tl.load(places + row * NUM_PARTS + part, mask=part < NUM_PARTS, other=0x7FFFFFFF)
    most = tl.max(each_most, 0)
    first = tl.min(tl.where(each_most == most, place, 0x7FFFFFFF), 0)
    tl.store(token_ids + row, tl.where(tl.abs(most) < float("inf"), first, -1).to(tl.int64))


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["slots", "positions", "token_ids"]
)
def put_kernel(  # type: ignore[no-untyped-def]
    slot_tokens, slots, positions, token_ids, num_rows, tokens_stride, ROWS: tl.constexpr
):
    """Program (rows); see `put` for the arguments."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    slot, position = tl.load(slots + row, mask=is_row, other=0), tl.load(positions + row, mask=is_row, other=0)
    token_id = tl.load(token_ids + row, mask=is_row, other=0)
    tl.store(slot_tokens + slot * tokens_stride + position, tl.maximum(token_id, 0).to(tl.int32), mask=is_row)


def likeliest(logits: Tensor) -> Tensor:
    """As `kernels.chosen_tokens.likeliest`; columns lie side by side."""
    num_rows, vocab_size = logits.shape
    num_parts = triton.cdiv(vocab_size, _TILE)
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows:
        highest = torch.empty((num_rows, num_parts), dtype=torch.float32, device=logits.device)
        places = torch.empty((num_rows, num_parts), dtype=torch.int32, device=logits.device)
        row_stride = logits.stride(0) if num_rows > 1 else vocab_size  # that of a single row may be anything
        parts_kernel[(num_rows, num_parts)](
            highest, places, logits, row_stride, vocab_size, NUM_PARTS=num_parts, TILE=_TILE
        )
        likeliest_kernel[(num_rows,)](
            token_ids,
            highest,
            places,
            NUM_PARTS=num_parts,
            PADDED_PARTS=triton.next_power_of_2(num_parts),
            num_warps=1,
        )
    return token_ids


def put(slot_tokens: Tensor, slots: Tensor, positions: Tensor, token_ids: Tensor) -> None:
    """As `kernels.chosen_tokens.put`; rows, and columns of `slot_tokens`, lie side by side."""
    if num_rows := len(token_ids):
        grid = (triton.cdiv(num_rows, _ROWS),)
        put_kernel[grid](slot_tokens, slots, positions, token_ids, num_rows, slot_tokens.stride(0), ROWS=_ROWS)
