"""Changes of logits before the choice of a token: penalties, DRY against repetitions, and forbidden tokens.

Each function changes some rows of float32 logits [rows, vocab] in place, one for each item; `slot_tokens` int32 [slots,
columns] has the tokens of all slots.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Many

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fairlead_engine.kernels.dispatch import has_kernels
from fairlead_engine.kernels.staging import is_on_host, to_device
from fairlead_engine.types import MOST_LOOKED_BACK, SamplingParams
from fairlead_engine.types.sequences import ScheduledSequence

_LEAST_REPETITION_PENALTY = 1e-30
"""A smaller penalty ranks the seen tokens above all others anyway, and the division must not overflow."""
_SHORT = 2**9 - 1
"""Padding up to this length costs less than a separate group. Beyond, each group is four times as long."""


def is_penalised(params: SamplingParams) -> bool:
    """Whether any of the three penalties is on."""
    return params.presence_penalty != 0.0 or params.frequency_penalty != 0.0 or params.repetition_penalty != 1.0


def penalise(logits: Tensor, rows: Many[int], items: Many[ScheduledSequence], slot_tokens: Tensor) -> None:
    """Applies the three penalties, for the tokens before each item's end.

    Only logits of occurring tokens are read: a sequence has hundreds, a vocabulary a hundred thousand. Rows are padded
    to the longest of a few groups of similar lengths: one context of 100,000 tokens must not make hundreds of short
    ones as expensive. On CUDA a kernel counts, without padding.
    """
    if has_kernels(logits):
        _penalise_by_kernel(logits, rows, items, slot_tokens)
        return
    groups: dict[int, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(max(item.end, _SHORT).bit_length() // 2, []).append(index)
    for indices in groups.values():
        _penalise_padded(logits, [rows[index] for index in indices], [items[index] for index in indices], slot_tokens)


def _penalise_by_kernel(logits: Tensor, rows: Many[int], items: Many[ScheduledSequence], slot_tokens: Tensor) -> None:
    from fairlead_engine.kernels import penalise_kernel

    numbers, strengths = _told(rows, items)
    longest = int(numbers[:, 2].max())
    rows_on_device, strengths_on_device = to_device(numbers, logits.device), to_device(strengths, logits.device)
    penalise_kernel.penalise(logits, rows_on_device, strengths_on_device, slot_tokens, longest)


def _penalise_padded(logits: Tensor, rows: Many[int], items: Many[ScheduledSequence], slot_tokens: Tensor) -> None:
    numbers, strengths = _told(rows, items)
    of_row, slots, ends, starts = to_device(numbers, logits.device).unsqueeze(-1).unbind(1)
    repetition, frequency, presence = to_device(strengths, logits.device).unsqueeze(-1).unbind(1)
    token_ids = slot_tokens[slots.squeeze(1), : int(numbers[:, 2].max())].long()
    position = torch.arange(token_ids.shape[1], device=logits.device)
    token_ids = torch.where(position < ends, token_ids, token_ids[:, :1])  # what is beyond its end is anything
    is_output = (position >= starts) & (position < ends)
    outputs = token_ids.masked_fill(~is_output, logits.shape[1]).sort(-1).values
    counts = torch.searchsorted(outputs, token_ids, right=True) - torch.searchsorted(outputs, token_ids)
    found = logits[of_row, token_ids]
    changed = torch.where(found > 0, found / repetition, found * repetition)
    logits[of_row, token_ids] = changed - frequency * counts - presence * (counts > 0)


def _told(rows: Many[int], items: Many[ScheduledSequence]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Row, slot, end and start of the output [rows, 4]; penalties of repetition, frequency, presence [rows, 3]."""
    numbers = np.array(
        [
            (row, item.token_row, item.end, item.sequence.num_prompt_tokens)
            for row, item in zip(rows, items, strict=True)
        ]
    )
    strengths = np.array(
        [
            (max(p.repetition_penalty, _LEAST_REPETITION_PENALTY), p.frequency_penalty, p.presence_penalty)
            for p in (item.sequence.sampling for item in items)
        ],
        np.float32,
    )
    return numbers, strengths


_LONGEST = 50
"""Longest counted repetition: with any sensible base the next repeated token is never drawn."""
_MOST_COMPARED = 2**20
"""Tokens compared at a time, with padding."""
_MOST_PENALTY = 1e30
_NOTHING = -1
"""In place of a token that is absent or not looked at; equals no other."""
_NO_END = -2
"""The same among the last tokens."""


def avoids_repetitions(params: SamplingParams) -> bool:
    """Whether DRY is on."""
    return params.dry_multiplier > 0.0 and params.dry_penalty_last_n != 0


def penalise_repetitions(logits: Tensor, rows: Many[int], items: Many[ScheduledSequence], slot_tokens: Tensor) -> None:
    """DRY ("Don't repeat yourself", by p-e-w), as text-generation-webui and llama.cpp define it: where the last tokens
    have stood together before, the next token of the earlier place is made less likely, the more so the longer the
    repetition.

    Work is bounded whatever the context: each of the last `dry_penalty_last_n` tokens, 4,096 at most, is compared with
    50 before it, in a few operations for all rows.
    """
    for part in _parts_of_items(items):
        _penalise_part(logits, rows[part], items[part], slot_tokens)


def _parts_of_items(items: Many[ScheduledSequence]) -> Iterator[slice]:
    """Groups of rows compared together, which bounds the memory of padding to the longest."""
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


def _penalise_part(logits: Tensor, rows: Many[int], items: Many[ScheduledSequence], slot_tokens: Tensor) -> None:
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
    """int16 [rows, longest - 1]: for each of `tokens` [rows, …] but the last, the number of tokens backwards from it
    that equal the last ones. On a CPU it stops where no repetition is longer."""
    lengths = torch.zeros((len(tokens), longest - 1), dtype=torch.int16, device=tokens.device)
    is_equal = torch.ones_like(lengths, dtype=torch.bool)
    for place in range(_LONGEST):
        is_equal &= tokens[:, place + 1 : place + longest] == ending[:, place : place + 1]
        if is_on_host(is_equal) and not bool(is_equal.any()):
            break
        lengths += is_equal
    return lengths


def _first(flags: Tensor) -> Tensor:
    """Index of the first true in the last dimension, or its length; int16 with one dimension less."""
    places = torch.arange(flags.shape[-1], dtype=torch.int16, device=flags.device)
    return torch.where(flags, places, flags.shape[-1]).amin(-1)


_NEVER = float("-inf")


def rule_out_others(logits: Tensor, rows: Many[int], items: Many[ScheduledSequence], slot_tokens: Tensor) -> None:
    """Leaves only `allowed_token_ids`."""
    allowed = [item.sequence.sampling.allowed_token_ids for item in items]
    most = max(map(len, allowed))
    padded = np.array([(*ids, *ids[:1] * (most - len(ids))) for ids in allowed], np.int64)
    token_ids, row = to_device(padded, logits.device), to_device(np.array(rows), logits.device)
    kept = logits[row.unsqueeze(1), token_ids]
    logits.index_fill_(0, row, _NEVER)
    logits[row.unsqueeze(1), token_ids] = kept


def rule_out_bad_words(logits: Tensor, rows: Many[int], items: Many[ScheduledSequence], slot_tokens: Tensor) -> None:
    """Rules out the last token of each of `bad_words` whose earlier tokens end the output."""
    found = [
        (row, item, word)
        for row, item in zip(rows, items, strict=True)
        for word in item.sequence.sampling.bad_words
        if len(word) - 1 <= item.num_output_tokens
    ]
    if not found:
        return
    most = max(len(word) - 1 for _, _, word in found)
    padded = [
        (row, item.token_row, item.end, word[-1], *[-1] * (most - len(word) + 1), *word[:-1])
        for row, item, word in found
    ]
    numbers = to_device(np.array(padded, np.int64), logits.device)
    row, slot, end, last = numbers[:, :4].unbind(1)
    before = numbers[:, 4:]
    positions = end.unsqueeze(1) - most + torch.arange(most, device=logits.device)
    tokens = slot_tokens[slot.unsqueeze(1), positions.clamp(min=0)]
    is_said = ((tokens == before) | (before < 0)).all(-1)
    logits.index_put_((row, last), torch.where(is_said, _NEVER, 0.0), accumulate=True)


def rule_out_far(logits: Tensor, rows: Many[int], items: Many[ScheduledSequence], slot_tokens: Tensor) -> None:
    """Rules out logits more than `top_n_sigma` standard deviations below the largest ("Top-nσ: not all logits are you
    need", Tang et al., 2024)."""
    strengths = np.array([[item.sequence.sampling.top_n_sigma] for item in items], np.float32)
    row = to_device(np.array(rows), logits.device)
    found = logits[row]
    is_there = found.isfinite()
    number = is_there.sum(-1, keepdim=True)
    mean = found.where(is_there, 0.0).sum(-1, keepdim=True) / number
    variance = (found - mean).where(is_there, 0.0).square().sum(-1, keepdim=True) / number
    least = found.amax(-1, keepdim=True) - to_device(strengths, logits.device) * variance.sqrt()
    logits.index_copy_(0, row, found.masked_fill(found < least, _NEVER))


def rule_out_top(logits: Tensor, params: Many[SamplingParams], uniforms: npt.NDArray[np.float64]) -> Tensor:
    """A copy of the logits without tokens excluded by XTC ("exclude top choices", by p-e-w): with `xtc_probability`
    (the row's number in [0, 1) decides), all with a share of at least `xtc_threshold` but the least likely of them."""
    is_drawn = uniforms < [each.xtc_probability for each in params]
    thresholds = np.where(is_drawn, [each.xtc_threshold for each in params], 2.0).astype(np.float32)
    shares = logits.softmax(-1)
    is_top = shares >= to_device(thresholds, logits.device).unsqueeze(1)
    least = torch.where(is_top, shares, 2.0).amin(-1, keepdim=True)
    return logits.masked_fill(is_top & (shares > least), _NEVER)
