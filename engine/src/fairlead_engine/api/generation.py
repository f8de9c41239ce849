"""A running API request: the choices, merged into one stream of text.

Both OpenAI endpoints build a `Generation` and read `batches()`. Knows sequences, text and time; not JSON, not HTTP.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Protocol

import msgspec

from fairlead_common.http.loop_shares import LoopShare, LoopShares
from fairlead_engine.api.detokenizer import TextDelta
from fairlead_engine.core.client import EngineClient
from fairlead_engine.core.request_stream import RequestStream
from fairlead_engine.errors import EngineError, QueueFull, RequestError
from fairlead_engine.host.metrics import Metrics
from fairlead_engine.types import MAX_ANSWER_LOGPROBS, EngineRequest, FinishReason, SequenceOutput

_HOLD_SECONDS = 30.0
"""Well below a gateway's patience for an answer's first byte."""
_PARTS_PER_SLOT = 2
"""Parts of one request at the core, per slot: enough for the next step when all running parts end in one step."""


class OutputReader(Protocol):
    """Turns a sequence's outputs into deltas for its client: a `Detokenizer`, or a reader of vectors."""

    @property
    def num_tokens(self) -> int: ...

    def push(self, output: SequenceOutput) -> TextDelta: ...


@dataclass(slots=True)
class Choice:
    """One sequence of a request and its figures."""

    index: int
    request: EngineRequest
    reader: OutputReader
    num_cached_tokens: int = 0
    num_injected_tokens: int = 0
    finish_reason: FinishReason | None = None
    first_token_time: float | None = None
    """Wall-clock seconds."""
    last_token_time: float = 0.0

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt and of injections."""
        return len(self.request.prompt_token_ids) + self.num_injected_tokens

    @property
    def num_output_tokens(self) -> int:
        return self.reader.num_tokens

    @property
    def may_contradict_itself(self) -> bool:
        """Whether the grammar and the sampling parameters may together exclude all tokens."""
        sampling = self.request.sampling
        return sampling.grammar is not None and bool(sampling.bad_words or sampling.allowed_token_ids)


class ChoiceDelta(msgspec.Struct, frozen=True, gc=False):
    """What a step added to one choice."""

    index: int
    delta: TextDelta


TakeAtOnce = Callable[[list[ChoiceDelta]], bool]
"""Offered a step's deltas without finished choices; False = read them from `Generation.batches`."""


def raise_failure(output: SequenceOutput) -> None:
    """Raises EngineError or RequestError for a sequence that failed."""
    if output.finish_reason is FinishReason.ERROR:
        raise EngineError(output.message or "the engine could not go on with this request")
    if output.finish_reason is FinishReason.INVALID:
        raise RequestError(output.field, output.message or "this cannot be done", "unsupported_value")


class Generation:
    """The choices of one request, running from `async with` on. Leaving it stops every choice that still runs.

    The core has a bounded number of the choices at a time, as thousands of prompts in its queue cost memory and time of
    every step; the end of a choice sends the next.

    A step's outputs are read in the event-loop round of their arrival, request by request; the answering task of a
    request is woken only for outputs that cannot be passed on at once.
    """

    def __init__(
        self,
        client: EngineClient,
        choices: Sequence[Choice],
        metrics: Metrics,
        on_sent: Callable[[int], None] | None = None,
        share: LoopShare | None = None,
    ) -> None:
        """`on_sent`: called with the number of each command that sends a choice at the beginning. `share`: of the loop,
        for sending many choices; None = all are sent at once."""
        self.choices = choices
        self._share = share or LoopShares().stream()
        self._on_sent = on_sent
        self._client = client
        self._metrics = metrics
        self._streams: list[tuple[Choice, RequestStream]] = []  # of the choices that run
        self._unsent = iter(choices)
        self._events: list[ChoiceDelta | Exception] = []  # arrived, not taken yet
        self._num_waiting_logprobs = 0  # of `_events`
        self._reads_soon = False
        self._has_events = asyncio.Event()
        self._take_at_once: TakeAtOnce | None = None
        self._is_awaited = False  # whether a reader waits, and was not woken yet
        self._first: list[ChoiceDelta] = []

    async def __aenter__(self) -> "Generation":
        try:
            async for choice in self._share.spread(
                islice(self._unsent, _PARTS_PER_SLOT * self._client.info.max_num_seqs)
            ):
                if (command := self._send(choice)) is not None and self._on_sent is not None:
                    self._on_sent(command)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    def _send(self, choice: Choice) -> int | None:
        """Returns the number of the command; None for a choice that failed."""
        stream = RequestStream(self._read_soon)
        try:
            command = self._client.add(choice.request, stream)
        except Exception as error:
            self._fail(choice, error)
            return None
        if choice.request.images:  # the core keeps the images
            choice.request = msgspec.structs.replace(choice.request, images=())
        self._streams.append((choice, stream))
        return command

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for choice, _ in self._streams:
            self._client.abort(choice.request.request_id)
        self._streams.clear()
        self._take_at_once = None  # a reference cycle otherwise: garbage to look for
        for choice in self.choices:
            if choice.finish_reason is None:
                self._finish(choice, FinishReason.ABORT)

    async def started(self) -> None:
        """Returns at the first text, and raises earlier errors. Parameters that exclude tokens may contradict a grammar
        at any token. A request with both waits for the whole answer, up to `_HOLD_SECONDS`, so that a refusal comes
        before the stream begins."""
        self._first = await self._next_batch()
        with suppress(TimeoutError):
            async with asyncio.timeout(_HOLD_SECONDS):
                while any(choice.may_contradict_itself and choice.finish_reason is None for choice in self.choices):
                    self._first += await self._next_batch()

    async def batches(self, take_at_once: TakeAtOnce | None = None) -> AsyncIterator[list[ChoiceDelta]]:
        """All deltas in order, in batches as they came; ends when every choice has finished. Deltas accepted by
        `take_at_once` are left out; it is offered deltas while no others wait."""
        num_running = len(self.choices)
        batch = self._first or await self._next_batch()
        while True:
            num_running -= sum(event.delta.finish_reason is not None for event in batch)
            yield batch
            if not num_running:
                return
            self._take_at_once = take_at_once
            batch = await self._next_batch()

    def stop(self, error: EngineError) -> None:
        """Ends the request with `error`, raised in its reader."""
        self._events.append(error)
        self._tell_reader()

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens; a prompt shared by several choices counts once."""
        prompts = {id(choice.request.prompt_token_ids): choice.num_prompt_tokens for choice in self.choices}
        return sum(prompts.values())

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens from the cache, of each prompt's first choice."""
        first: dict[int, int] = {}
        for choice in self.choices:
            first.setdefault(id(choice.request.prompt_token_ids), choice.num_cached_tokens)
        return sum(first.values())

    @property
    def num_output_tokens(self) -> int:
        return sum(choice.num_output_tokens for choice in self.choices)

    async def _next_batch(self) -> list[ChoiceDelta]:
        if not self._events:
            self._is_awaited = True
            await self._has_events.wait()
        events, self._events = self._events, []
        self._has_events.clear()
        batch = []
        for event in events:
            if isinstance(event, Exception):
                raise event
            self._num_waiting_logprobs -= event.delta.num_logprobs
            batch.append(event)
        return batch

    def _tell_reader(self) -> None:
        self._is_awaited = False
        self._has_events.set()

    def _read_soon(self) -> None:
        """Schedules one read for the outputs of all choices."""
        if not self._reads_soon:
            self._reads_soon = True
            asyncio.get_running_loop().call_soon(self._read)

    def _read(self) -> None:
        """Reads what has come, and passes it on."""
        self._reads_soon = False
        for choice, stream in [*self._streams]:
            if not stream.is_ready:
                continue
            try:
                delta = self._take(choice, stream.take())
                self._put(ChoiceDelta(choice.index, delta))
            except Exception as error:
                self._end(choice)
                self._fail(choice, error)
            else:
                if delta.finish_reason is not None:
                    self._end(choice)
                    self._tell_reader()
                    if (following := next(self._unsent, None)) is not None:
                        self._send(following)
                elif stream.is_ready:  # an error of the same round is not announced again
                    self._read_soon()
        if self._events and not self._is_passed_on():
            self._tell_reader()

    def _is_passed_on(self) -> bool:
        """Whether the deltas went past the waiting reader; a reader with an error or end to take does not wait."""
        if self._take_at_once is None or not self._is_awaited:
            return False
        batch = [event for event in self._events if isinstance(event, ChoiceDelta)]
        try:
            is_taken = self._take_at_once(batch)
        except Exception as error:
            self._events = [error]
            return False
        if is_taken:
            self._events = []
            self._num_waiting_logprobs -= sum(event.delta.num_logprobs for event in batch)
        return is_taken

    def _end(self, choice: Choice) -> None:
        """Ends a choice's stream; the core may still run the choice."""
        self._streams = [each for each in self._streams if each[0] is not choice]
        self._client.abort(choice.request.request_id)

    def _fail(self, choice: Choice, error: Exception) -> None:
        if isinstance(error, QueueFull):
            choice.finish_reason = FinishReason.REJECTED  # nothing ran, so there is nothing to measure
        elif choice.finish_reason is None:
            self._finish(choice, FinishReason.ERROR)
        self._events.append(error)
        self._tell_reader()

    def _take(self, choice: Choice, output: SequenceOutput) -> TextDelta:
        raise_failure(output)
        now = time.time()
        choice.num_cached_tokens = max(choice.num_cached_tokens, output.num_cached_tokens)
        if output.first_scheduled_time is not None:
            self._metrics.queued(output.first_scheduled_time - choice.request.arrival_time)
        if output.new_token_ids or output.embedding is not None:
            if choice.first_token_time is None:
                choice.first_token_time = now
                self._metrics.first_token(now - choice.request.arrival_time)
            else:
                self._metrics.tokens(len(output.new_token_ids), now - choice.last_token_time)
            choice.last_token_time = now
        if output.injected is not None:
            choice.num_injected_tokens += output.injected.num_tokens
        delta = choice.reader.push(output)
        if delta.finish_reason is not None:
            self._finish(choice, delta.finish_reason)
        return delta

    def _put(self, event: ChoiceDelta) -> None:
        """Raises `RequestError` when too many log-probabilities are left unread; unread text is small."""
        num_logprobs = event.delta.num_logprobs
        if num_logprobs and self._num_waiting_logprobs + num_logprobs > MAX_ANSWER_LOGPROBS:
            raise RequestError(
                "logprobs",
                f"more than {MAX_ANSWER_LOGPROBS:,} log-probabilities wait to be read; read the stream faster, or ask "
                "for fewer",
                "answer_too_large",
            )
        self._num_waiting_logprobs += num_logprobs
        self._events.append(event)

    def _finish(self, choice: Choice, reason: FinishReason) -> None:
        choice.finish_reason = reason
        self._metrics.finished(reason, time.time() - choice.request.arrival_time)
