"""Tokens that cannot be chosen: all but those that are allowed, ends of bad words, what is far below the likeliest, and
what is too likely."""

from collections.abc import Sequence as Many

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fairlead_engine.kernels.staging import to_device
from fairlead_engine.types import SamplingParams
from fairlead_engine.types.sequences import ScheduledSequence

_NEVER = float("-inf")


def rule_out_others(logits: Tensor, rows: Many[int], items: Many[ScheduledSequence], slot_tokens: Tensor) -> None:
    """In these rows of float32 logits [rows, vocab] leaves `allowed_token_ids` alone."""
    allowed = [item.sequence.sampling.allowed_token_ids for item in items]
    most = max(map(len, allowed))
    padded = np.array([(*ids, *ids[:1] * (most - len(ids))) for ids in allowed], np.int64)
    token_ids, row = to_device(padded, logits.device), to_device(np.array(rows), logits.device)
    kept = logits[row.unsqueeze(1), token_ids]
    logits.index_fill_(0, row, _NEVER)
    logits[row.unsqueeze(1), token_ids] = kept


def rule_out_bad_words(logits: Tensor, rows: Many[int], items: Many[ScheduledSequence], slot_tokens: Tensor) -> None:
    """In these rows of float32 logits [rows, vocab] rules out the last token of each of `bad_words` whose tokens before
    it stand at the end of the output. `slot_tokens` int32 [slots, columns] has the sequences' tokens."""
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
    """In these rows of float32 logits [rows, vocab] rules out what is more than `top_n_sigma` standard deviations of
    the logits below the largest ("Top-nσ: not all logits are you need", Tang et al., 2024)."""
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
    """A copy of float32 logits [rows, vocab] without the tokens that "exclude top choices" (XTC, by p-e-w) takes away:
    with `xtc_probability`, for which the row's number in [0, 1) is drawn, all with a share of at least `xtc_threshold`
    but the least likely of them."""
    is_drawn = uniforms < [each.xtc_probability for each in params]
    thresholds = np.where(is_drawn, [each.xtc_threshold for each in params], 2.0).astype(np.float32)
    shares = logits.softmax(-1)
    is_top = shares >= to_device(thresholds, logits.device).unsqueeze(1)
    least = torch.where(is_top, shares, 2.0).amin(-1, keepdim=True)
    return logits.masked_fill(is_top & (shares > least), _NEVER)
