"""The load generator: conversations in an open loop (at given arrivals) or a closed one (a given number at a time), and
a Sample of every request.

Used by `fairlead bench` and the demo. A sample's times count from when the request was *due*, so neither a late
generator nor a slow server improves the figures (no coordinated omission). The workload makes questions, the report
interprets samples.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fairlead.client.openai import ChatAnswer, OpenAIClient, RequestFailed
from fairlead.client.workload import Conversation, Turn

REJECTED = 429
"""Status of a request refused for want of room."""
PAUSE_SECONDS = 0.5
"""How long a client of a closed loop waits after a failure before it asks again, at least."""
_LOOK_SECONDS = 0.1
"""Seconds between checks of a loop's size."""


@dataclass(slots=True)
class LoadSample:
    """One request. Times are seconds since the load began."""

    due: float
    """Planned time: the arrival in an open loop, the start of its turn in a closed one."""
    sent: float = 0.0
    ended: float | None = None
    """None while it is under way."""
    completion: ChatAnswer = field(default_factory=ChatAnswer)
    """Its own times count from `sent`."""
    error: RequestFailed | None = None
    right: bool | None = None
    """Whether the answer was the known one; None where none is known, or none came."""

    @property
    def is_completed(self) -> bool:
        """Whether the whole answer came."""
        return self.ended is not None and self.error is None

    @property
    def is_rejected(self) -> bool:
        """Whether it was refused for want of room."""
        return self.error is not None and self.error.status == REJECTED

    @property
    def ttft_seconds(self) -> float | None:
        """From when the request was due to its first token; None = no token."""
        ttft = self.completion.ttft_seconds
        return None if ttft is None else self.sent - self.due + ttft

    @property
    def latency_seconds(self) -> float | None:
        """From when it was due to its end; None while it is under way."""
        return None if self.ended is None else self.ended - self.due


class LoadGenerator:
    """Sends conversations and keeps a sample of each request. `samples` and `seconds` may be read at any time."""

    def __init__(self, client: OpenAIClient, model: str, *, max_requests: int | None = None) -> None:
        """`max_requests`: no request is sent after so many; None = the workload's end is the end."""
        self._client = client
        self._model = model
        self._max_requests = max_requests
        self._started: float | None = None
        self._ended: float | None = None
        self._stopping = asyncio.Event()
        self.samples: list[LoadSample] = []
        """In the order in which they were due."""

    @property
    def seconds(self) -> float:
        """Since the load began; to its end, where it has ended."""
        if self._started is None:
            return 0.0
        return (self._ended if self._ended is not None else _now()) - self._started

    def stop(self) -> None:
        """A loop without another end begins no further conversation, and ends when those under way have."""
        self._stopping.set()

    async def open_loop(self, conversations: Iterator[Conversation], arrivals: Iterable[float]) -> None:
        """Begins a conversation at each of `arrivals` (seconds from now), whatever is under way, and waits for all.
        Later turns are due when the turn before is answered."""
        with self._timed():
            async with asyncio.TaskGroup() as group:
                for due, conversation in zip(arrivals, conversations, strict=False):
                    if await self._stopped_before(due):
                        return
                    group.create_task(self._converse(conversation, due))
                    await asyncio.sleep(0)  # lets it send, so that it counts
                    if self._is_full:
                        return

    async def closed_loop(
        self, conversations: Iterator[Conversation], *, concurrency: int, seconds: float | None = None
    ) -> None:
        """Keeps `concurrency` conversations going, and waits for the last. `seconds`: no new request after so long.
        After a failure the place pauses for the server's Retry-After, else `PAUSE_SECONDS`: refusals take no time, and
        would come by the thousand."""
        until = float("inf") if seconds is None else seconds

        async def work() -> None:
            while self.seconds < until and not self._is_full:
                conversation = next(conversations, None)  # shared: each worker takes the next one
                if conversation is None:
                    return
                failure = await self._converse(conversation, self.seconds, until)
                if failure is not None:
                    pause = max(PAUSE_SECONDS, failure.retry_after or 0.0)
                    if await self._stopped_before(self.seconds + pause):
                        return

        with self._timed():
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(work())

    async def changing_loop(
        self,
        conversations: Iterator[Conversation],
        concurrency: Callable[[], int],
        *,
        every_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """A closed loop of changing `concurrency`, until `stop`. `every_seconds`: least time between the starts of a
        place's conversations."""
        going: set[int] = set()

        async def work(place: int) -> None:
            while place < concurrency() and not self._stopping.is_set():
                due = self.seconds
                failure = await self._converse(next(conversations), due)
                pause = 0.0 if failure is None else max(PAUSE_SECONDS, failure.retry_after or 0.0)
                await self._stopped_before(max(self.seconds + pause, due + every_seconds()))
            going.discard(place)

        with self._timed():
            async with asyncio.TaskGroup() as group:
                while True:
                    for place in set(range(concurrency())) - going:
                        going.add(place)
                        group.create_task(work(place))
                    if await self._stopped_before(self.seconds + _LOOK_SECONDS):
                        return

    async def _stopped_before(self, due: float) -> bool:
        """Waits until `due`, or for `stop`; whether that came first."""
        assert self._started is not None
        try:
            async with asyncio.timeout_at(self._started + due):
                return await self._stopping.wait()
        except TimeoutError:
            return False

    @property
    def _is_full(self) -> bool:
        return self._max_requests is not None and len(self.samples) >= self._max_requests

    async def _converse(
        self, conversation: Conversation, due: float, until: float = float("inf")
    ) -> RequestFailed | None:
        """Sends turn by turn; the first failure ends the conversation and is returned."""
        messages = list(conversation.opening)
        for index, turn in enumerate(conversation.turns):
            if index and (self._is_full or due >= until):
                return None
            messages.append({"role": "user", "content": turn.question})
            sample = await self._ask(messages, turn, due)
            if sample.error is not None:
                return sample.error
            messages.append({"role": "assistant", "content": sample.completion.text})
            due = self.seconds
        return None

    async def _ask(self, messages: list[dict[str, str]], turn: Turn, due: float) -> LoadSample:
        sample = LoadSample(due, sent=self.seconds)
        self.samples.append(sample)
        try:
            await self._client.chat(self._model, list(messages), completion=sample.completion, **turn.parameters)
            sample.right = turn.is_right(sample.completion.text)
        except RequestFailed as error:
            sample.error = error
        sample.ended = self.seconds
        return sample

    @contextmanager
    def _timed(self) -> Iterator[None]:
        self._started = _now()
        try:
            yield
        finally:
            self._ended = _now()


def _now() -> float:
    return asyncio.get_running_loop().time()
