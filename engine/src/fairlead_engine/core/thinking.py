"""Thinking budgets: how long a sequence may reason before the end of its reasoning is forced, token by token.

The engine's thread passes in every chosen token. Token ids only; models' markup is unknown here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fairlead_engine.types import ThinkingBudget
from fairlead_engine.types.batch import Batch, TokenMasks
from fairlead_engine.types.sequences import SampledToken, Sequence

_MOST_BEFORE = 8
"""Answer tokens (white space) after which reasoning no longer begins."""
_UNDER_WAY = 2
"""Tokens that may be chosen before the next look at a sequence."""
_BITS = 32


@dataclass(slots=True)
class _Thought:
    """A sequence's progress in its reasoning."""

    budget: ThinkingBudget
    has_begun: bool
    num_seen: int = 0
    """Tokens of the answer before the reasoning begins, then tokens of the reasoning."""
    num_matched: int = 0
    """Last tokens that match the beginning of `marker`."""

    @property
    def marker(self) -> tuple[int, ...]:
        """The marker that comes next: the reasoning's beginning or its end."""
        return self.budget.end if self.has_begun else self.budget.begin

    @property
    def forced(self) -> int | None:
        """The token that must come next; None = any may."""
        is_over = self.has_begun and self.num_seen >= self.budget.num_tokens
        return self.budget.end[self.num_matched] if is_over else None

    @property
    def may_be_forced(self) -> bool:
        """Whether one of the next tokens may have to be forced."""
        num_seen = self.num_seen if self.has_begun else 0
        return num_seen + _UNDER_WAY >= self.budget.num_tokens

    def accept(self, token_id: int) -> bool:
        """Advances by a token; False = the reasoning is over, or did not begin."""
        self.num_seen += 1
        marker = self.marker
        if token_id != marker[self.num_matched]:
            self.num_matched = 0
        if token_id == marker[self.num_matched]:
            self.num_matched += 1
        if self.num_matched == len(marker):
            if self.has_begun:
                return False
            self.has_begun, self.num_seen, self.num_matched = True, 0, 0
        return self.has_begun or self.num_seen < _MOST_BEFORE


class ThinkingBudgets:
    """Budgets of waiting and running sequences."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = -(-vocab_size // _BITS)
        self._thoughts: dict[Sequence, _Thought] = {}

    def __bool__(self) -> bool:
        """Whether any sequence has a budget."""
        return bool(self._thoughts)

    def add(self, sequence: Sequence) -> None:
        if (budget := sequence.sampling.thinking) is not None:
            self._thoughts[sequence] = _Thought(budget, budget.has_begun)

    def constrain(self, batch: Batch) -> bool:
        """Whether a token of `batch` may have to be forced."""
        return bool(self._thoughts) and any(
            thought.may_be_forced for _, sequence in batch.sampling if (thought := self._thoughts.get(sequence))
        )

    def forced(self, batch: Batch, masks: TokenMasks) -> TokenMasks:
        """`masks` with forced tokens, once all earlier tokens are accepted. A grammar's exclusions are not forced."""
        if not self._thoughts:
            return masks
        words = dict(zip(masks.rows.tolist(), masks.words, strict=True))
        for row, sequence in batch.sampling:
            thought = self._thoughts.get(sequence)
            token_id = None if thought is None else thought.forced
            if token_id is None:
                continue
            only = np.zeros(self._num_words, np.int32)
            only[token_id // _BITS] = np.array(1 << token_id % _BITS, np.uint32).view(np.int32)
            if row not in words or (words[row] & only).any():
                words[row] = only
        if not words:
            return masks
        rows = sorted(words)
        return TokenMasks(np.array(rows, np.int64), np.stack([words[row] for row in rows]))

    def accept(self, batch: Batch, sampled: list[SampledToken | None]) -> None:
        if not self._thoughts:
            return
        sequences = [*batch.decodes.sequences, *(item.sequence for item in batch.chunks)]
        for sequence, token in zip(sequences, sampled, strict=True):
            thought = self._thoughts.get(sequence) if token is not None and token.is_there else None
            if thought is not None and token is not None and not thought.accept(token.token_id):
                del self._thoughts[sequence]

    def forget(self, sequences: Iterable[Sequence]) -> None:
        """Drops ended sequences; unknown ones are ignored."""
        for sequence in sequences:
            self._thoughts.pop(sequence, None)
