"""Beam search: each beam is a request of one token with a cached prefix.

The core knows nothing of beams: each round asks for the next token of every beam at once, and the prefix cache holds
all of a beam but its last block. `Beams` chooses which beams go on by the rules of transformers' `generate(num_beams=…,
do_sample=False)`. Among all tokens behind all beams, ranked by the sum of log-probabilities, ends within the first
`width` are answers, and the `width` likeliest others are followed. Answers are ranked by sum / (number of tokens **
`length_penalty`).
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import msgspec

from fairlead_engine.api.generation import Choice, ChoiceDelta, Generation, raise_failure
from fairlead_engine.api.schemas import ChatRequest, CompletionRequest, GenerationRequest
from fairlead_engine.core.client import EngineClient
from fairlead_engine.core.request_stream import RequestStream
from fairlead_engine.errors import EngineError, QueueFull, RequestError
from fairlead_engine.host.metrics import Metrics
from fairlead_engine.types import (
    MAX_LOGPROBS,
    EngineInfo,
    EngineRequest,
    FinishReason,
    HeldPrompt,
    SamplingParams,
    SequenceOutput,
    TokenLogprobs,
)
from fairlead_engine.types.parameters import declared

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class Beam:
    """Tokens of an answer, and the sum of their log-probabilities."""

    tokens: tuple[TokenLogprobs, ...] = ()
    total: float = 0.0
    has_ended: bool = False
    """Whether its last token ends the answer."""

    @property
    def token_ids(self) -> list[int]:
        return [token.token_id for token in self.tokens]


class Beams:
    """Beams of one prompt. `is_over` once no better answer is possible or wanted; then `best` are the answers."""

    def __init__(
        self,
        width: int,
        max_tokens: int,
        *,
        end_token_ids: Collection[int],
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
    ) -> None:
        """`early_stopping`: True ends the search at `width` answers; False when the likeliest beam, scored at the
        current length, is worse than all answers; "never" when no length would make the beam better."""
        self._width = width
        self._max_tokens = max_tokens
        self._end_token_ids = frozenset(end_token_ids)
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping
        self._num_tokens = 0
        self.best: list[tuple[float, Beam]] = []
        """Scores and answers, the best first; `width` of them if the model has enough tokens."""
        self.running = [Beam()]
        """Beams to continue, the likeliest first; empty at the end."""

    @property
    def num_likeliest(self) -> int:
        """How many of the likeliest tokens behind each beam must be known."""
        return self._width + len(self._end_token_ids)

    @property
    def is_over(self) -> bool:
        return not self.running

    def advance(self, behind: Sequence[TokenLogprobs]) -> None:
        """Advances by one token. `behind`: candidates behind each of `running`, in order; `top` counts."""
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
                    self.best.append((self._score(total, self._num_tokens), longer))
                else:
                    followed.append(longer)
        self.best.sort(key=lambda each: -each[0])
        del self.best[self._width :]
        self.running = followed if followed and self._may_improve(followed[0]) else []

    def _score(self, total: float, num_tokens: int) -> float:
        return float(total / num_tokens**self._length_penalty)

    def _may_improve(self, likeliest: Beam) -> bool:
        """Whether to look for better answers."""
        if len(self.best) < self._width:
            return True
        if self._early_stopping is True:
            return False
        is_patient = self._early_stopping == "never" and self._length_penalty > 0.0
        num_tokens = self._max_tokens if is_patient else self._num_tokens
        return self._score(likeliest.total, num_tokens) > self.best[-1][0]


_FULL_SECONDS = 0.05
"""Pause of a begun search after the queue was full."""
_GOES_TOGETHER = frozenset(
    {
        "model", "messages", "prompt", "n", "best_of", "max_tokens", "max_completion_tokens", "use_beam_search",
        "length_penalty", "early_stopping", "temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids",
        "include_stop_str_in_output", "ignore_eos", "logprobs", "top_logprobs", "skip_special_tokens",
        "return_token_ids", "return_tokens_as_token_ids", "cache_salt", "priority", "add_special_tokens",
        "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "reasoning_effort", "user",
        "fairlead_prompt_tokens", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "prompt_cache_options", "moderation", "prediction",
        "truncate_prompt_tokens", "truncation_side",
    }
)  # fmt: skip
"""Fields with a meaning for a search, or about drawing, which a search ignores."""


def check_beams(request: GenerationRequest, max_tokens: int | None) -> None:
    """Raises `RequestError` for fields that exclude a beam search, and for the search's fields without a search."""
    if not request.use_beam_search:
        for name, without_effect in (("length_penalty", (None, 1)), ("early_stopping", (None, False))):
            if getattr(request, name) not in without_effect:
                raise RequestError(name, f"{name} needs use_beam_search = true")
        return
    if request.early_stopping not in (None, True, False, "never"):
        raise RequestError("early_stopping", 'early_stopping must be true, false or "never"')
    if max_tokens == 0:
        raise RequestError("max_tokens", "use_beam_search needs a max_tokens above 0")
    for name in sorted(msgspec.structs.asdict(request).keys() - _GOES_TOGETHER):
        if not _asks_for_nothing(name, getattr(request, name)):
            raise RequestError(
                name,
                f"{name} does not go together with use_beam_search, which follows the model's own log-probabilities "
                "and is not streamed; leave one of the two out",
                "unsupported_value",
            )


_DEFAULTS: dict[str, Any] = {each.name: each.default for each in declared(SamplingParams)}


def _asks_for_nothing(name: str, value: Any) -> bool:
    """Whether a field is as good as left out: false, an empty list, a penalty of 0, a format of text."""
    if value is None or value is False or value in ([], {}, "none"):
        return True
    return value == _DEFAULTS.get(name) or getattr(value, "type", None) == "text"


@dataclass(slots=True)
class _AskedBeam:
    """A beam whose next token is requested."""

    choice: Choice
    request: EngineRequest
    stream: RequestStream | None = None
    behind: TokenLogprobs | None = None
    """Candidates for the next token."""


class BeamSearch(Generation):
    """The answers of one request, all at once in the end."""

    def __init__(
        self,
        client: EngineClient,
        choices: Sequence[Choice],
        metrics: Metrics,
        on_sent: Callable[[int], None] | None,
        *,
        request: ChatRequest | CompletionRequest,
        info: EngineInfo,
    ) -> None:
        """`choices`: grouped by prompt, one per beam. Raises `RequestError` for too many beams."""
        super().__init__(client, choices, metrics, on_sent)
        width = request.num_each
        self._by_prompt = [choices[first : first + width] for first in range(0, len(choices), width)]
        virtual_tokens = client.load.virtual_tokens
        self._searches = [
            _beams(request, each[0], info, virtual_tokens.get(each[0].request.adapter or "", 0))
            for each in self._by_prompt
        ]
        is_chat = isinstance(request, ChatRequest)
        self._tells_logprobs = bool(request.logprobs) if is_chat else request.logprobs is not None
        self._num_top = (request.top_logprobs if is_chat else request.logprobs) or 0
        self._asked: list[_AskedBeam] = []
        self._num_asked = 0
        self._wake = asyncio.Event()
        most = max(each.num_likeliest for each in self._searches)
        if most > MAX_LOGPROBS:
            raise RequestError(
                "n" if getattr(request, "best_of", None) is None else "best_of",
                f"use_beam_search with {width} beams and {most - width} tokens that end an answer looks at the {most} "
                f"likeliest tokens, and at most {MAX_LOGPROBS} are told; lower the number of answers",
            )

    async def __aenter__(self) -> "BeamSearch":
        return self

    async def __aexit__(self, *error: Any) -> None:
        for asked in self._asked:
            if asked.stream is not None and asked.behind is None:
                self._client.abort(asked.request.request_id)
        for choices in self._by_prompt:
            self._client.release(_hold(choices[0]))
        await super().__aexit__(*error)

    async def started(self) -> None:
        """Searches to the end."""
        for choices in self._by_prompt:
            begin = choices[0].request
            held = HeldPrompt(prompt_token_ids=begin.prompt_token_ids, images=begin.images, adapter=begin.adapter)
            self._client.hold(_hold(choices[0]), held)
            for choice in choices:  # the core keeps the images for all rounds
                choice.request = msgspec.structs.replace(choice.request, images=())
        try:
            while not all(search.is_over for search in self._searches):
                await self._round()
        except QueueFull:
            for choice in self.choices:
                choice.finish_reason = FinishReason.REJECTED  # nothing ran, so there is nothing to measure
            raise
        for choices, search in zip(self._by_prompt, self._searches, strict=True):
            self._first += self._answers(choices, search)

    def stop(self, error: EngineError) -> None:
        super().stop(error)
        self._wake.set()

    async def _round(self) -> None:
        """A token behind each beam of each prompt."""
        is_first = not self._asked
        running = zip(self._by_prompt, self._searches, strict=True)
        self._asked = [self._next(choices[0], search, beam) for choices, search in running for beam in search.running]
        while left := [asked for asked in self._asked if asked.behind is None]:
            for asked in left:
                if asked.stream is None:
                    asked.stream = RequestStream(self._wake.set)
                    command = self._client.add(asked.request, asked.stream)
                    if is_first and self._on_sent is not None:
                        self._on_sent(command)
            await self._wake.wait()
            self._wake.clear()
            for event in self._events:
                if isinstance(event, Exception):
                    raise event
            try:
                for asked in left:
                    self._take_token(asked)
            except QueueFull:
                if is_first:
                    raise
                await asyncio.sleep(_FULL_SECONDS)
        behind = (asked.behind for asked in self._asked if asked.behind is not None)
        for search in self._searches:
            if not search.is_over:
                search.advance([*islice(behind, len(search.running))])

    def _next(self, choice: Choice, search: Beams, beam: Beam) -> _AskedBeam:
        before, self._num_asked = choice.request, self._num_asked + 1
        sampling = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=search.num_likeliest)
        request = msgspec.structs.replace(
            before,
            request_id=f"{before.request_id}/{self._num_asked}",
            prompt_token_ids=beam.token_ids,
            sampling=sampling,
            hold=_hold(choice),
        )
        return _AskedBeam(choice, request)

    def _take_token(self, asked: _AskedBeam) -> None:
        """Takes the beam's token, if it has come. Raises QueueFull if it must be requested again."""
        if asked.stream is None or not asked.stream.is_ready:
            return
        try:
            output = asked.stream.take()
        except QueueFull:
            asked.stream = None
            self._wake.set()  # for the beams that follow
            raise
        raise_failure(output)
        choice, now = asked.choice, time.time()
        if choice.first_token_time is None:
            choice.first_token_time = choice.last_token_time = now
            choice.num_cached_tokens = output.num_cached_tokens
            if output.first_scheduled_time is not None:
                self._metrics.queued(output.first_scheduled_time - choice.request.arrival_time)
            self._metrics.first_token(now - choice.request.arrival_time)
        asked.behind = (output.logprobs or [])[0]

    def _answers(self, choices: Sequence[Choice], search: Beams) -> list[ChoiceDelta]:
        """The found beams as if they had been generated; fewer for a model with fewer tokens than beams."""
        found = []
        answers = [beam for _, beam in search.best]
        for choice, beam in zip(choices, answers + answers[-1:] * (len(choices) - len(answers)), strict=True):
            reason = FinishReason.STOP if beam.has_ended else FinishReason.LENGTH
            told = [msgspec.structs.replace(token, top=token.top[: self._num_top]) for token in beam.tokens]
            output = SequenceOutput(
                request_id=choice.request.request_id,
                new_token_ids=beam.token_ids,
                finish_reason=reason,
                num_cached_tokens=choices[0].num_cached_tokens,
                logprobs=told if self._tells_logprobs else None,
                stop_token_id=beam.token_ids[-1] if beam.has_ended else None,
            )
            found.append(ChoiceDelta(choice.index, choice.reader.push(output)))
            self._finish(choice, reason)
        return found


def _hold(choice: Choice) -> str:
    """Name under which the core keeps the search's prompt, images and adapter: sent once, and independent of a later
    unload or replacement of the adapter."""
    return f"{choice.request.request_id}/begin"


def _beams(request: GenerationRequest, choice: Choice, info: EngineInfo, num_virtual_tokens: int) -> Beams:
    """The search for a prompt's answers, behind a soft prompt of this many tokens."""
    sampling = choice.request.sampling
    room = info.max_model_len - num_virtual_tokens - choice.num_prompt_tokens
    return Beams(
        request.num_each,
        room if sampling.max_tokens is None else min(room, sampling.max_tokens),
        end_token_ids={*sampling.stop_token_ids, *(() if sampling.ignore_eos else info.eos_token_ids)},
        length_penalty=1.0 if request.length_penalty is None else request.length_penalty,
        early_stopping="never" if request.early_stopping == "never" else request.early_stopping is True,
    )
