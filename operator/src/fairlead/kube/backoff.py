"""Backoff: growing pauses between attempts, randomised so that followers do not march in step."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any


class Backoff:
    """Each pause is twice as long as the one before, up to `last` seconds."""

    def __init__(
        self,
        first: float,
        last: float,
        *,
        spread: float = 0.2,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        """`spread`: random share by which pauses vary, to spread the return of a server's followers."""
        self.seconds = first
        """How long the next pause is, but for the spread."""
        self._first = first
        self._last = last
        self._spread = spread
        self._sleep = sleep

    def reset(self) -> None:
        """It went well: the next pause is a first one."""
        self.seconds = self._first

    async def pause(self) -> None:
        """Waits."""
        seconds, self.seconds = self.seconds, min(self.seconds * 2.0, self._last)
        await self.wait(seconds)

    async def wait(self, seconds: float) -> None:
        """Waits for about so long; the next pause stays what it is."""
        await self._sleep(seconds * random.uniform(1.0 - self._spread, 1.0 + self._spread))
