"""Presence, frequency and repetition penalties, and the token counts they need.

Definitions as in OpenAI's API (presence, frequency) and CTRL (repetition; Keskar et al., arXiv 1909.05858).
"""

import numpy as np
import torch
from torch import Tensor

from fairlead_engine.types import SamplingParams, Sequence

_LEAST_REPETITION_PENALTY = 1e-30
"""Below it a token that was seen outweighs every other anyway, and dividing by it must not overflow."""


class TokenCounts:
    """Which tokens a sequence holds, and how often its output holds each; brought up to date as tokens come.

    Only tokens that occur are kept: a sequence has hundreds of them, a vocabulary a hundred thousand.
    """

    def __init__(self, prompt_token_ids: list[int]) -> None:
        self._token_ids = np.unique(np.array(prompt_token_ids, np.int64))
        self._counts = np.zeros(len(self._token_ids), np.float32)
        self._place = {token_id: place for place, token_id in enumerate(self._token_ids.tolist())}
        self._num_counted = len(prompt_token_ids)

    def catch_up(self, sequence: Sequence) -> None:
        """Counts the tokens that came since the last call."""
        for token_id in sequence.token_ids[self._num_counted :]:
            place = self._place.setdefault(token_id, len(self._place))
            if place == len(self._counts):
                more = np.zeros(max(64, place))
                self._token_ids = np.concatenate((self._token_ids, more.astype(np.int64)))
                self._counts = np.concatenate((self._counts, more.astype(np.float32)))
            self._token_ids[place] = token_id
            self._counts[place] += 1.0
        self._num_counted = sequence.num_tokens

    def seen(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Tokens of prompt or output, int64 [tokens], and how often the output holds each, float32 [tokens]."""
        num = len(self._place)
        token_ids, counts = torch.from_numpy(self._token_ids[:num]), torch.from_numpy(self._counts[:num])
        return token_ids.to(device), counts.to(device)


def is_penalised(params: SamplingParams) -> bool:
    """Whether any of the three penalties is on."""
    return params.presence_penalty != 0.0 or params.frequency_penalty != 0.0 or params.repetition_penalty != 1.0


def penalise(logits: Tensor, counts: TokenCounts, params: SamplingParams) -> None:
    """Changes one row of logits [vocab] in place."""
    token_ids, num_times = counts.seen(logits.device)
    changed = logits[token_ids]
    if params.repetition_penalty != 1.0:
        penalty = max(params.repetition_penalty, _LEAST_REPETITION_PENALTY)
        changed = torch.where(changed > 0, changed / penalty, changed * penalty)
    if params.frequency_penalty != 0.0:
        changed = changed - params.frequency_penalty * num_times
    if params.presence_penalty != 0.0:
        changed = changed - params.presence_penalty * num_times.clamp(max=1.0)
    logits[token_ids] = changed
