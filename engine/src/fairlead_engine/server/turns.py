"""Who has a turn next, where more want one than can have it: whoever ranks lowest. Knows nothing of what it is for."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class Turns(Generic[Thing]):
    """Things that one at a time has each of. Not shared between event loops."""

    def __init__(self, things: Iterable[Thing]) -> None:
        self._idle = [*things]
        self._waiting: list[tuple[float, int, asyncio.Future[Thing]]] = []
        self._numbers = itertools.count()

    async def take(self, rank: float) -> Thing:
        """One of them, to be given back. Among equal ranks who came first goes first."""
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
        """It goes to whoever is next."""
        while self._waiting:
            _, _, waiting = heapq.heappop(self._waiting)
            if not waiting.done():
                waiting.set_result(thing)
                return
        self._idle.append(thing)

    @asynccontextmanager
    async def turn(self, rank: float) -> AsyncIterator[Thing]:
        """One of them, within the block."""
        thing = await self.take(rank)
        try:
            yield thing
        finally:
            self.give_back(thing)
