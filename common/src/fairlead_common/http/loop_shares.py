"""Shares of the event loop for streams from outside and for scrapes of the metrics, so that tokens pass in between.

An engine may send lines or events without end, and a client thousands of prompts at once. A stream with a small
share goes on at once: honest streams never wait. Streams with a larger share go on in turn, and between two pieces of
work the loop is free for at least the duration of the last piece. A waiting stream reads nothing: the sender waits as
well.

Rendering the metrics takes milliseconds, and anybody can ask for metrics. Requests at about the same time share one
rendering, which begins after each of the requests, and renderings together take a bounded share of the time.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")

PIECE_SECONDS = 0.002
"""Processor time of one stream at a stretch."""
FREE_RATIO = 0.01
"""Share of a processor that every stream may take without waiting; an engine needs a tenth for loads and changes."""
BURST_SECONDS = 0.02
"""Additional processor time of a stream after a quiet while."""
PAUSE_RATIO = 2.0
"""Pause of a stream after a piece of work, as a multiple of the seconds of the piece."""


class LoopShares:
    """One for all streams of a kind in a process."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    def stream(self) -> "LoopShare":
        """For one more stream."""
        return LoopShare(self._turn)


class LoopShare:
    """Accounts for one stream. Between `begin` and `rest`, await nothing."""

    def __init__(self, turn: asyncio.Lock) -> None:
        self._turn = turn
        self._loop = asyncio.get_running_loop()
        self._as_of = self._loop.time()
        self._debt = 0.0
        """Processor seconds taken beyond the ratio, as of `_as_of`."""
        self._began = 0.0

    def begin(self) -> None:
        """A piece of work begins."""
        self._began = time.thread_time()

    @property
    def is_long(self) -> bool:
        """Whether the piece has used up its time."""
        return time.thread_time() - self._began > PIECE_SECONDS

    async def spread(self, items: Iterable[Item]) -> AsyncIterator[Item]:
        """Yields `items`; the caller's work on each is a part of a piece."""
        self.begin()
        for item in items:
            yield item
            if self.is_long:
                await self.rest()

    async def rest(self) -> None:
        """Ends the piece; returns when the next may begin, and begins it."""
        took, now = time.thread_time() - self._began, self._loop.time()
        left = max(0.0, self._debt - FREE_RATIO * (now - self._as_of))
        self._as_of, self._debt = now, min(left + took, 2 * BURST_SECONDS)
        if left + took > BURST_SECONDS or took > PIECE_SECONDS:
            async with self._turn:
                await asyncio.sleep(PAUSE_RATIO * took if left + took > BURST_SECONDS else 0)
        self.begin()


REST = 9.0
"""Pause after a rendering, as a multiple of its duration: renderings take a tenth of the time at most."""


class Scrapes:
    """Of one process. Belongs to one event loop."""

    def __init__(self, render: Callable[[], bytes], prepare: Callable[[], Awaitable[object]] | None = None) -> None:
        """`prepare` is awaited before each rendering."""
        self._render = render
        self._prepare = prepare
        self._next: asyncio.Task[bytes] | None = None
        """The rendering that is waiting to begin."""
        self._turn = asyncio.Lock()
        self._rests_until = float("-inf")

    async def text(self) -> bytes:
        """All metrics as they are a moment after the call."""
        if self._next is None:
            self._next = asyncio.create_task(self._render_in_turn())
        return await asyncio.shield(self._next)  # others wait for it, too

    async def _render_in_turn(self) -> bytes:
        now = asyncio.get_running_loop().time
        async with self._turn:  # preparing takes a while, in which the next one must not begin
            await asyncio.sleep(max(0.0, self._rests_until - now()))
            self._next = None
            if self._prepare is not None:
                await self._prepare()
            begun = now()
            try:
                return self._render()
            finally:
                self._rests_until = now() + REST * (now() - begun)
