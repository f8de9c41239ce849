"""A sequence's outputs → text for its reader.

Joins token text, stop strings and log-probabilities of one sequence. `Generation` and `LLM` push the core's outputs and
pass the deltas on. Stop strings are matched here, above the core, which knows only ids.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import msgspec

from fairlead_engine.api.token_text import Vocabulary
from fairlead_engine.types import FinishReason, Injected, SamplingParams, SequenceOutput, TokenLogprobs


class StopStrings:
    """Watches growing text for stop strings, in pieces of any size.

    The text ends at the first complete stop string (of two ending together, the longer). Only text that may begin a
    stop string is held back.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> str:
        """Text that certainly belongs to the output; empty after a match."""
        if self.matched is not None or not self._stops:
            return "" if self.matched is not None else text
        self._held += text
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if not found:
            certain = len(self._held) - self._num_held_back()
        else:
            _, start, self.matched = min(found)
            certain = start + (len(self.matched) if self._include_stop else 0)
        shown, self._held = self._held[:certain], self._held[certain:]
        return shown

    def finish(self) -> str:
        """The text held back, if no stop string ended it."""
        shown = "" if self.matched is not None else self._held
        self._held = ""
        return shown

    def _num_held_back(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0


class CallDelta(msgspec.Struct, frozen=True, gc=False):
    """An output's addition to a call of a function."""

    index: int
    """Of the call in its answer."""
    arguments: str
    id: str | None = None
    """Id of a call that begins; None = more of an earlier call."""
    name: str | None = None
    """The function's name, for a call that begins."""


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """What one output added to a sequence's text."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] = []
    """One entry per token, when asked for."""
    prompt_logprobs: list[TokenLogprobs] = []
    """Of the prompt's next tokens, from its second token on, when asked for."""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id of the request that ended the text; None = the model's own end of sequence."""
    reasoning: str = ""
    calls: list[CallDelta] = []
    num_reasoning_tokens: int = 0
    """Tokens of `reasoning`."""
    injected: Injected | None = None
    """Injection into the answer behind this delta."""

    @property
    def num_logprobs(self) -> int:
        """Number of log-probabilities, alternatives included."""
        if not (self.logprobs or self.prompt_logprobs):
            return 0
        return sum(1 + len(token.top) for token in (*self.prompt_logprobs, *self.logprobs))

    def parts(self, num_scores: int) -> Iterator["TextDelta"]:
        """The delta in several parts, each with at most `num_scores` of the prompt's thousands of scores."""
        scores = self.prompt_logprobs
        last = max(0, len(scores) - 1) // num_scores * num_scores
        for start in range(0, last, num_scores):
            yield TextDelta("", [], prompt_logprobs=scores[start : start + num_scores])
        yield msgspec.structs.replace(self, prompt_logprobs=scores[last:]) if last else self


class Detokenizer:
    """One sequence's text. After a delta with a finish reason the sequence is over; later outputs are ignored."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        sampling: SamplingParams,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
        follows_prompt: bool = False,
        notes_begins: bool = False,
    ) -> None:
        """`shown`: special tokens that are part of the text. `follows_prompt`: whether the client also gets the prompt,
        including an incomplete last character. `notes_begins`: for `take_begun`."""
        self._sampling = sampling
        self._stream = vocabulary.stream(
            after=prompt_token_ids,
            skip_special_tokens=skip_special_tokens,
            shown=shown,
            tells_begun=follows_prompt,
        )
        self._stops = StopStrings(sampling.stop, include_stop=sampling.include_stop)
        self._push = self._noted if notes_begins else self._stream.push
        self._begins: list[int] = []
        """Of each token not taken yet, the characters before its text."""
        self._num_characters = 0
        self.num_tokens = 0
        """Output tokens so far, without tokens after a stop string's match."""

    def push(self, output: SequenceOutput) -> TextDelta:
        if output.finish_reason is None and not self._sampling.stop:
            self.num_tokens += len(output.new_token_ids)
            text = "".join(map(self._push, output.new_token_ids))
            return TextDelta(text, output.new_token_ids, output.logprobs or [], output.prompt_logprobs or [])
        text = ""
        taken = 0
        hides_last = output.stop_token_id is not None and not self._sampling.include_stop
        for token_id in output.new_token_ids:
            taken += 1
            self.num_tokens += 1
            is_hidden = hides_last and taken == len(output.new_token_ids)
            piece = "" if is_hidden else self._push(token_id)
            # Text of the first `min_tokens` tokens cannot end the output, so nothing of it needs to wait either.
            text += piece if self.num_tokens <= self._sampling.min_tokens else self._stops.push(piece)
            if self._stops.matched is not None:
                return self._delta(output, text, taken, FinishReason.STOP, self._stops.matched)
        if output.finish_reason is None:
            return self._delta(output, text, taken, None, None)
        text += self._stops.push(self._stream.finish())
        if self._stops.matched is not None:
            return self._delta(output, text, taken, FinishReason.STOP, self._stops.matched)
        stop_id = output.stop_token_id if output.stop_token_id in self._sampling.stop_token_ids else None
        return self._delta(output, text + self._stops.finish(), taken, output.finish_reason, stop_id)

    def take_begun(self, place: int) -> int:
        """Number of tokens whose text begins before this character of the answer, each counted once."""
        number = bisect_left(self._begins, place)
        del self._begins[:number]
        return number

    def _noted(self, token_id: int) -> str:
        text = self._stream.push(token_id)
        self._begins.append(self._num_characters)
        self._num_characters += len(text)
        return text

    def _delta(
        self,
        output: SequenceOutput,
        text: str,
        num_taken: int,
        finish_reason: FinishReason | None,
        stop_reason: str | int | None,
    ) -> TextDelta:
        return TextDelta(
            text=text,
            token_ids=output.new_token_ids[:num_taken],
            logprobs=(output.logprobs or [])[:num_taken],
            prompt_logprobs=output.prompt_logprobs or [],
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )
