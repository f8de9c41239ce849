"""Integers of a few bits, several to an int32, as checkpoints store them."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

WORD_BITS = 32


def num_words(size: int, num_bits: int) -> int:
    """Words that so many integers take."""
    return -(-size * num_bits // WORD_BITS)


def unpack(words: Tensor, num_bits: int, order: Sequence[int] | None = None) -> Tensor:
    """int8 [rows, 32 / num_bits x words] of int32 [rows, words], half of their range taken off.

    The first is in the lowest bits; or the i-th of a word is where `order` says, in integers from the lowest.
    """
    places = range(WORD_BITS // num_bits) if order is None else order
    shifts = torch.tensor([num_bits * place for place in places], dtype=torch.int32, device=words.device)
    values = (words.unsqueeze(-1) >> shifts).bitwise_and_(2**num_bits - 1).sub_(2 ** (num_bits - 1))
    return values.to(torch.int8).flatten(1)


def pack(values: Tensor, num_bits: int) -> Tensor:
    """int32 [rows, words] of signed integers [rows, size], half of their range added: the first in the lowest bits."""
    per_word = WORD_BITS // num_bits
    unsigned = pad(values.to(torch.int64) + 2 ** (num_bits - 1), (0, -values.shape[1] % per_word))
    shifts = torch.arange(0, WORD_BITS, num_bits, device=values.device)
    joined = (unsigned.view(len(values), -1, per_word) << shifts).sum(-1)
    return torch.where(joined >= 2**31, joined - 2**32, joined).to(torch.int32)
