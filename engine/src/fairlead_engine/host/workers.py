"""Processes of this engine that run strangers' programs: their root, turns among jobs, and retries."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

from fairlead_common.workers.branch import WorkerInterrupted
from fairlead_common.workers.pool import WorkersClosed
from fairlead_common.workers.root import WorkerRoot
from fairlead_engine.errors import Draining, NotReady

PROMPT_PROGRAM = "fairlead_engine.api.prompt_program"
_MOST_BESIDE = 16
"""Slow jobs at a time of one program; programs do not wait for each other."""


def prompt_root() -> WorkerRoot:
    """Close it when done."""
    return WorkerRoot([PROMPT_PROGRAM], _MOST_BESIDE)


_TRIES = 50
"""For a job whose process is ended repeatedly, by earlier jobs or by the system."""
_PAUSE_SECONDS = 0.01


class Loadable(Protocol):
    """An executor of jobs, as `Workers`."""

    async def loaded(self) -> None: ...


async def tried(workers: Loadable, ask: Callable[[], Awaitable[bytes]]) -> bytes:
    """Result of `ask`, with retries after WorkerInterrupted. Raises its errors, but NotReady after too many tries, and
    Draining for WorkersClosed."""
    for _ in range(_TRIES):
        try:
            await workers.loaded()
            return await ask()
        except WorkerInterrupted:
            await asyncio.sleep(_PAUSE_SECONDS)
        except WorkersClosed:
            raise Draining from None
    raise NotReady("the processes that do this engine's work are being started again; send the request again")


Thing = TypeVar("Thing")


class Turns(Generic[Thing]):
    """Things, each with one holder at a time. Not shared between event loops."""

    def __init__(self, things: Iterable[Thing]) -> None:
        self._idle = [*things]
        self._waiting: list[tuple[float, int, asyncio.Future[Thing]]] = []
        self._numbers = itertools.count()

    async def take(self, rank: float) -> Thing:
        """A thing, to be given back. Among equal ranks the first caller goes first."""
        if self._idle:
            return self._idle.pop()
        waiting: asyncio.Future[Thing] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._numbers), waiting))
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self.give_back(waiting.result())
            raise

    def give_back(self, thing: Thing) -> None:
        """Passes the thing to the next caller."""
        while self._waiting:
            _, _, waiting = heapq.heappop(self._waiting)
            if not waiting.done():
                waiting.set_result(thing)
                return
        self._idle.append(thing)

    @asynccontextmanager
    async def turn(self, rank: float) -> AsyncIterator[Thing]:
        thing = await self.take(rank)
        try:
            yield thing
        finally:
            self.give_back(thing)
