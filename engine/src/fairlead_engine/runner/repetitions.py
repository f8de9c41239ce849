"""DRY: penalties on tokens that would go on with a repetition of what a sequence holds already.

"Don't repeat yourself", by p-e-w, as text-generation-webui and llama.cpp define it: where the last tokens have stood
together before, the token that came next then is made less likely, the more so the longer the repetition is.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Many

import numpy as np
import torch
from torch import Tensor

from fairlead_engine.kernels.staging import is_on_host, to_device
from fairlead_engine.types import MOST_LOOKED_BACK, SamplingParams
from fairlead_engine.types.sequences import ScheduledSequence

_LONGEST = 50
"""Tokens of a repetition that are counted: with any base worth the name nobody draws a token after so many."""
_MOST_COMPARED = 2**20
"""Tokens that are compared at a time, with padding."""
_MOST_PENALTY = 1e30
_NOTHING = -1
"""In place of a token that is not there or not looked at, which equals no other,"""
_NO_END = -2
"""nor this one, among the last tokens."""


def avoids_repetitions(params: SamplingParams) -> bool:
    """Whether the penalty is on."""
    return params.dry_multiplier > 0.0 and params.dry_penalty_last_n != 0


def penalise_repetitions(logits: Tensor, rows: Many[int], items: Many[ScheduledSequence], slot_tokens: Tensor) -> None:
    """Changes these rows of float32 logits [rows, vocab] in place, each for what its item's sequence holds by then.

    `slot_tokens` int32 [slots, columns] has the sequences' tokens. Work is bounded whatever the context: each of the
    last `dry_penalty_last_n` tokens, 4,096 at most, is compared with 50 before it, in a few operations for all rows.
    """
    for part in _parts(items):
        _penalise(logits, rows[part], items[part], slot_tokens)


def _parts(items: Many[ScheduledSequence]) -> Iterator[slice]:
    """Rows that are looked at together: padded to the longest, they must not take too much memory."""
    first, longest = 0, 0
    for place, item in enumerate(items):
        longest = max(longest, _num_looked_at(item))
        if place > first and (place - first + 1) * longest > _MOST_COMPARED:
            yield slice(first, place)
            first, longest = place, _num_looked_at(item)
    yield slice(first, len(items))


def _num_looked_at(item: ScheduledSequence) -> int:
    last_n = item.sequence.sampling.dry_penalty_last_n
    num_tokens = item.end - item.sequence.num_virtual_tokens
    return min(num_tokens, MOST_LOOKED_BACK if last_n < 0 else last_n)


def _penalise(logits: Tensor, rows: Many[int], items: Many[ScheduledSequence], slot_tokens: Tensor) -> None:
    params = [item.sequence.sampling for item in items]
    widths = [_num_looked_at(item) for item in items]
    longest = max(widths)
    if longest < 2:
        return
    device = logits.device
    numbers = np.array(
        [
            (row, item.token_row, item.end - 1, width, each.dry_allowed_length)
            for row, item, width, each in zip(rows, items, widths, params, strict=True)
        ],
        np.int64,
    )
    row, slot, last, width, allowed = to_device(numbers, device).unsqueeze(-1).unbind(1)
    strengths = np.array([(each.dry_multiplier, each.dry_base) for each in params], np.float32)
    multiplier, base = to_device(strengths, device).unsqueeze(-1).unbind(1)
    # Tokens from the last one backwards.
    back = torch.arange(longest + _LONGEST, device=device)
    tokens = slot_tokens[slot, (last - back).clamp(min=0)]
    tokens = torch.where(back < width, tokens, _NOTHING)
    ending = tokens[:, :_LONGEST]
    ending = torch.where(ending == _NOTHING, _NO_END, ending)
    lengths = _lengths(tokens, ending, longest)
    following = tokens[:, : longest - 1]
    is_free = following != _NOTHING
    if (most := max(len(each.dry_sequence_breakers) for each in params)) > 0:
        padded = [(*each.dry_sequence_breakers, *[_NO_END - 1] * most)[:most] for each in params]
        breakers = to_device(np.array(padded, np.int32), device).unsqueeze(1)
        lengths = lengths.minimum(_first((ending.unsqueeze(-1) == breakers).any(-1)).unsqueeze(-1))
        is_free &= (following.unsqueeze(-1) != breakers).all(-1)
    is_long = (lengths >= allowed) & (lengths > 0) & is_free
    penalty = (multiplier * base ** (lengths - allowed).clamp(min=0)).clamp(max=_MOST_PENALTY)
    token_ids = following.clamp(min=0).long()
    # Of a token that has followed several, the longest repetition counts: the least logit of all.
    changed = logits[row, token_ids] - torch.where(is_long, penalty, 0.0)
    row = row.squeeze(1)
    logits.index_copy_(0, row, logits[row].scatter_reduce_(1, token_ids, changed, "amin"))


def _lengths(tokens: Tensor, ending: Tensor, longest: int) -> Tensor:
    """How many tokens equal the last ones, backwards from each of `tokens` [rows, …] but the last one: int16
    [rows, longest - 1]. On a CPU it ends where no repetition is longer."""
    lengths = torch.zeros((len(tokens), longest - 1), dtype=torch.int16, device=tokens.device)
    is_equal = torch.ones_like(lengths, dtype=torch.bool)
    for place in range(_LONGEST):
        is_equal &= tokens[:, place + 1 : place + longest] == ending[:, place : place + 1]
        if is_on_host(is_equal) and not bool(is_equal.any()):
            break
        lengths += is_equal
    return lengths


def _first(flags: Tensor) -> Tensor:
    """Where the last dimension is true first, its length where nowhere; of one dimension less, int16."""
    places = torch.arange(flags.shape[-1], dtype=torch.int16, device=flags.device)
    return torch.where(flags, places, flags.shape[-1]).amin(-1)
