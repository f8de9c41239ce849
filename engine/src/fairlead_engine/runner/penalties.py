"""Presence, frequency and repetition penalties, and the token counts they need.

Definitions as in OpenAI's API (presence, frequency) and CTRL (repetition; Keskar et al., arXiv 1909.05858).
"""

import torch
from torch import Tensor

from fairlead_engine.types import SamplingParams, Sequence

_LEAST_REPETITION_PENALTY = 1e-30
"""Below it a token that was seen outweighs every other anyway, and dividing by it must not overflow."""


class TokenCounts:
    """Which tokens a sequence holds, and how often its output holds each; brought up to date as tokens come."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        """Tokens of prompt or output."""
        self.output = torch.zeros(vocab_size, dtype=torch.float32, device=device)
        """How often the output holds each token."""
        self._num_counted = 0

    def catch_up(self, sequence: Sequence) -> None:
        """Counts the tokens that came since the last call."""
        fresh = sequence.token_ids[self._num_counted :]
        if not fresh:
            return
        token_ids = torch.tensor(fresh, dtype=torch.int64, device=self.seen.device)
        num_prompt = max(0, sequence.num_prompt_tokens - self._num_counted)
        self.seen[token_ids] = True
        outputs = token_ids[num_prompt:]
        self.output.scatter_add_(0, outputs, torch.ones_like(outputs, dtype=torch.float32))
        self._num_counted = sequence.num_tokens


def is_penalised(params: SamplingParams) -> bool:
    """Whether any of the three penalties is on."""
    return params.presence_penalty != 0.0 or params.frequency_penalty != 0.0 or params.repetition_penalty != 1.0


def penalise(logits: Tensor, counts: TokenCounts, params: SamplingParams) -> None:
    """Changes one row of logits [vocab] in place."""
    if params.repetition_penalty != 1.0:
        penalty = max(params.repetition_penalty, _LEAST_REPETITION_PENALTY)
        logits.copy_(torch.where(counts.seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits))
    if params.frequency_penalty != 0.0:
        logits.sub_(counts.output, alpha=params.frequency_penalty)
    if params.presence_penalty != 0.0:
        logits.sub_(counts.output.clamp(max=1.0), alpha=params.presence_penalty)
