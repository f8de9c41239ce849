"""Penalties on a GPU: each sequence's tokens are counted there, and each distinct token is changed once: Triton.

The first kernel counts into a row of the vocabulary's length. The second goes through the same tokens; the single
program that takes a token's count away changes its logit. Counts are whole numbers, and the result is independent of
the programs' order; nothing is sorted, and rows of any lengths share the two launches.

Bytes: 4 x vocabulary for each row, to clear the counts; then for each token of a sequence its id twice, its count in
three accesses and, once for each distinct token, its logit twice. Operations: negligible.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024
_UNALIGNED = ["numbers", "strengths"]
_IS_HELD: tl.constexpr = tl.constexpr(1 << 30)
"""Added to the count of generated tokens, for the prompt's tokens too: above the number of positions."""


@triton.jit(do_not_specialize_on_alignment=_UNALIGNED)  # type: ignore[untyped-decorator]
def count_kernel(  # type: ignore[no-untyped-def]
    counts, slot_tokens, numbers, tokens_stride, VOCAB_SIZE, TILE: tl.constexpr
):
    """Program (row, tile of positions); see `penalise` for the arguments."""
    row, position = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE + tl.arange(0, TILE)
    slot, end, start = tl.load(numbers + row * 4 + 1), tl.load(numbers + row * 4 + 2), tl.load(numbers + row * 4 + 3)
    is_there = position < end
    token = tl.load(slot_tokens + slot * tokens_stride + position, mask=is_there, other=0)
    place = counts + row * VOCAB_SIZE + token
    tl.atomic_or(place, tl.full([TILE], _IS_HELD, tl.int32), mask=is_there, sem="relaxed")
    tl.atomic_add(place, tl.full([TILE], 1, tl.int32), mask=is_there & (position >= start), sem="relaxed")


@triton.jit(do_not_specialize_on_alignment=_UNALIGNED)  # type: ignore[untyped-decorator]
def change_kernel(  # type: ignore[no-untyped-def]
    logits, counts, slot_tokens, numbers, strengths, row_stride, tokens_stride, VOCAB_SIZE, TILE: tl.constexpr
):
    """Program (row, tile of positions); leaves the counts at zero."""
    row, position = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE + tl.arange(0, TILE)
    of_row, slot, end = tl.load(numbers + row * 4), tl.load(numbers + row * 4 + 1), tl.load(numbers + row * 4 + 2)
    repetition, frequency = tl.load(strengths + row * 3), tl.load(strengths + row * 3 + 1)
    presence = tl.load(strengths + row * 3 + 2)
    is_there = position < end
    token = tl.load(slot_tokens + slot * tokens_stride + position, mask=is_there, other=0)
    place = counts + row * VOCAB_SIZE + token
    count = tl.atomic_xchg(place, tl.zeros([TILE], tl.int32), mask=is_there, sem="relaxed")
    is_first = is_there & (count != 0)
    num_chosen = (count & (_IS_HELD - 1)).to(tl.float32)
    logit = logits + of_row * row_stride + token
    x = tl.load(logit, mask=is_first, other=0.0)
    x = tl.where(x > 0, x / repetition, x * repetition)
    tl.store(logit, x - frequency * num_chosen - tl.where(num_chosen > 0, presence, 0.0), mask=is_first)


def penalise(logits: Tensor, numbers: Tensor, strengths: Tensor, slot_tokens: Tensor, longest: int) -> None:
    """Changes some rows of float32 logits [rows, vocab] in place. numbers int64 [n, 4] has each row, its slot, the
    slot's number of tokens, at most `longest`, and the prompt's number of tokens; strengths float32 [n, 3] the
    penalties of repetition, frequency and presence. slot_tokens int32 [slots, columns] holds the sequences' tokens."""
    (num_rows, _), vocab_size = numbers.shape, logits.shape[1]
    counts = torch.zeros((num_rows, vocab_size), dtype=torch.int32, device=logits.device)
    grid = (num_rows, triton.cdiv(longest, _TILE))
    count_kernel[grid](counts, slot_tokens, numbers, slot_tokens.stride(0), vocab_size, TILE=_TILE)
    change_kernel[grid](
        logits, counts, slot_tokens, numbers, strengths, logits.stride(0), slot_tokens.stride(0), vocab_size, TILE=_TILE
    )
