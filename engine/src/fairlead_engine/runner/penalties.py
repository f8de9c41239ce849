"""Penalties on tokens that a sequence holds already: OpenAI's presence and frequency, and transformers' repetition."""

from collections.abc import Sequence as Many

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fairlead_engine.kernels.dispatch import has_kernels
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.types import SamplingParams
from fairlead_engine.types.sequences import ScheduledSequence

_LEAST_REPETITION_PENALTY = 1e-30
"""A smaller one ranks the seen tokens above every other anyway, and dividing by it must not overflow."""
_SHORT = 2**9 - 1
"""Padding to so many tokens costs less than a group of its own. Beyond, each group is four times as long."""


def is_penalised(params: SamplingParams) -> bool:
    """Whether any of the three penalties is on."""
    return params.presence_penalty != 0.0 or params.frequency_penalty != 0.0 or params.repetition_penalty != 1.0


def penalise(logits: Tensor, rows: Many[int], items: Many[ScheduledSequence], slot_tokens: Tensor) -> None:
    """Changes these rows of float32 logits [rows, vocab] in place, each for what its item's sequence holds by then.

    `slot_tokens` int32 [slots, columns] has the sequences' tokens. Only logits of tokens that occur are looked at: a
    sequence has hundreds of them, a vocabulary a hundred thousand. Rows are padded to the longest of a few groups of
    similar lengths: one context of 100,000 tokens must not cost hundreds of short ones as much each. On CUDA kernels
    count, and nothing is padded.
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
    """For each its row, its slot, where it ends and where its output begins [rows, 4], and its penalties of repetition,
    frequency and presence [rows, 3]."""
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
