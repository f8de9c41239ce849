"""Which beginnings of an answer a beam search follows, and which answers it has found. Pure: log-probabilities in.

The rules are those of transformers' `generate(num_beams=…, do_sample=False)`. Of all tokens behind all beams the
likeliest count, by the sum of log-probabilities: ends among the first `width` of them are answers, and the `width`
likeliest that are no ends are followed. Answers are compared by that sum / (their tokens ** `length_penalty`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from fairlead_engine.types import TokenLogprobs

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class Beam:
    """Tokens of an answer."""

    tokens: tuple[TokenLogprobs, ...] = ()
    total: float = 0.0
    """Their log-probabilities together."""
    has_ended: bool = False
    """By its last token."""

    @property
    def token_ids(self) -> list[int]:
        return [token.token_id for token in self.tokens]


class Beams:
    """One prompt's. `is_over` once no better answer can come, or is looked for; `best` are the answers then."""

    def __init__(
        self,
        width: int,
        max_tokens: int,
        *,
        end_token_ids: Collection[int],
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
    ) -> None:
        """`early_stopping`: True ends the search when there are `width` answers; False when the likeliest beam, as long
        as it is, is worse than each of them; "never" when it could not become better however long it got."""
        self._width = width
        self._max_tokens = max_tokens
        self._end_token_ids = frozenset(end_token_ids)
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping
        self._num_tokens = 0
        self._found: list[tuple[float, Beam]] = []
        self.running = [Beam()]
        """To be gone on with, the likeliest first; empty once it is over."""

    @property
    def num_likeliest(self) -> int:
        """How many of the likeliest tokens behind each beam must be known."""
        return self._width + len(self._end_token_ids)

    @property
    def is_over(self) -> bool:
        return not self.running

    @property
    def best(self) -> list[tuple[float, Beam]]:
        """Scores and answers, the best first; `width` of them, where the model has so many tokens."""
        return self._found

    def advance(self, behind: Sequence[TokenLogprobs]) -> None:
        """Goes on by a token: what may come behind each of `running`, in that order, of which `top` counts."""
        self._num_tokens += 1
        candidates = [
            (beam.total + logprob, beam, TokenLogprobs(token_id, logprob, following.top, rank))
            for beam, following in zip(self.running, behind, strict=True)
            for rank, (token_id, logprob) in enumerate(following.top)
        ]
        candidates.sort(key=lambda each: -each[0])
        is_last = self._num_tokens == self._max_tokens
        followed: list[Beam] = []
        for place, (total, beam, token) in enumerate(candidates):
            has_ended = token.token_id in self._end_token_ids
            is_answer = has_ended or is_last
            if place < self._width if is_answer else len(followed) < self._width:
                longer = Beam((*beam.tokens, token), total, has_ended)
                if is_answer:
                    self._found.append((self._score(total, self._num_tokens), longer))
                else:
                    followed.append(longer)
        self._found.sort(key=lambda each: -each[0])
        del self._found[self._width :]
        self.running = followed if followed and self._may_improve(followed[0]) else []

    def _score(self, total: float, num_tokens: int) -> float:
        return float(total / num_tokens**self._length_penalty)

    def _may_improve(self, likeliest: Beam) -> bool:
        """Whether to look for better answers than those there are."""
        if len(self._found) < self._width:
            return True
        if self._early_stopping is True:
            return False
        is_patient = self._early_stopping == "never" and self._length_penalty > 0.0
        num_tokens = self._max_tokens if is_patient else self._num_tokens
        return self._score(likeliest.total, num_tokens) > self._found[-1][0]
