"""One API request while it runs: its choices, merged into one stream of text.

Both OpenAI endpoints build a `Generation` and read `batches()`. It knows sequences, text and time; not JSON, not HTTP.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from fairlead_engine.core.client import EngineClient
from fairlead_engine.errors import EngineError, QueueFull, RequestError
from fairlead_engine.server.detokenizer import TextDelta
from fairlead_engine.server.metrics import Metrics
from fairlead_engine.types import MAX_ANSWER_LOGPROBS, EngineRequest, FinishReason, SequenceOutput


class OutputReader(Protocol):
    """Makes of a sequence's outputs what its client is told: a `Detokenizer`, or what keeps a vector."""

    num_tokens: int
    """Output tokens so far."""

    def push(self, output: SequenceOutput) -> TextDelta:
        """What an output adds."""
        ...


@dataclass(slots=True)
class Choice:
    """One sequence of a request and its figures."""

    index: int
    request: EngineRequest
    reader: OutputReader
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    first_token_time: float | None = None
    """Wall-clock seconds."""
    last_token_time: float = 0.0

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return self.reader.num_tokens


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What a step added to one choice."""

    index: int
    delta: TextDelta


class Generation:
    """The choices of one request, running from `async with` on. Leaving it stops every choice that still runs."""

    def __init__(
        self,
        client: EngineClient,
        choices: Sequence[Choice],
        metrics: Metrics,
        on_sent: Callable[[int], None] | None = None,
    ) -> None:
        self.choices = choices
        self._on_sent = on_sent  # called with each choice's command to the core
        self._client = client
        self._metrics = metrics
        self._arrived: asyncio.Queue[ChoiceDelta | Exception] = asyncio.Queue()
        self._num_waiting_logprobs = 0  # of what has arrived and nobody has taken yet
        self._first: list[ChoiceDelta] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Generation":
        self._tasks = [asyncio.create_task(self._run(choice)) for choice in self.choices]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for choice in self.choices:
            if choice.finish_reason is None:
                self._finish(choice, FinishReason.ABORT)

    async def started(self) -> None:
        """Returns when the first text is there. What refuses or breaks the request before that is raised here."""
        self._first = await self._next_batch()

    async def batches(self) -> AsyncIterator[list[ChoiceDelta]]:
        """All deltas in order, those that came together together; ends when every choice has finished."""
        num_running = len(self.choices)
        batch = self._first or await self._next_batch()
        while True:
            num_running -= sum(event.delta.finish_reason is not None for event in batch)
            yield batch
            if not num_running:
                return
            batch = await self._next_batch()

    def stop(self, error: EngineError) -> None:
        """Ends the request with `error`, raised to whoever reads it."""
        self._arrived.put_nowait(error)

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens, those that several choices share counted once."""
        prompts = {id(choice.request.prompt_token_ids): choice.num_prompt_tokens for choice in self.choices}
        return sum(prompts.values())

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that came from the cache, for each prompt's first choice."""
        first: dict[int, int] = {}
        for choice in self.choices:
            first.setdefault(id(choice.request.prompt_token_ids), choice.num_cached_tokens)
        return sum(first.values())

    @property
    def num_output_tokens(self) -> int:
        return sum(choice.num_output_tokens for choice in self.choices)

    async def _next_batch(self) -> list[ChoiceDelta]:
        events = [await self._arrived.get()]
        while not self._arrived.empty():
            events.append(self._arrived.get_nowait())
        for event in events:
            if isinstance(event, Exception):
                raise event
            self._num_waiting_logprobs -= event.delta.num_logprobs
        return [event for event in events if isinstance(event, ChoiceDelta)]

    async def _run(self, choice: Choice) -> None:
        try:
            async with aclosing(self._client.generate(choice.request, self._on_sent)) as outputs:
                async for output in outputs:
                    delta = self._take(choice, output)
                    self._put(ChoiceDelta(choice.index, delta))
                    if delta.finish_reason is not None:
                        return
        except QueueFull as error:
            choice.finish_reason = FinishReason.REJECTED  # nothing ran, so there is nothing to measure
            self._arrived.put_nowait(error)
        except Exception as error:
            self._finish(choice, FinishReason.ERROR)
            self._arrived.put_nowait(error)

    def _take(self, choice: Choice, output: SequenceOutput) -> TextDelta:
        if output.finish_reason is FinishReason.ERROR:
            raise EngineError(output.message or "the engine could not go on with this request")
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
        delta = choice.reader.push(output)
        if delta.finish_reason is not None:
            self._finish(choice, delta.finish_reason)
        return delta

    def _put(self, event: ChoiceDelta) -> None:
        """Raises `RequestError` when too many log-probabilities are left unread; text is small, they are not."""
        num_logprobs = event.delta.num_logprobs
        if num_logprobs and self._num_waiting_logprobs + num_logprobs > MAX_ANSWER_LOGPROBS:
            raise RequestError(
                "logprobs",
                f"more than {MAX_ANSWER_LOGPROBS:,} log-probabilities wait to be read; read the stream faster, or ask "
                "for fewer",
                "answer_too_large",
            )
        self._num_waiting_logprobs += num_logprobs
        self._arrived.put_nowait(event)

    def _finish(self, choice: Choice, reason: FinishReason) -> None:
        choice.finish_reason = reason
        self._metrics.finished(reason, time.time() - choice.request.arrival_time)
