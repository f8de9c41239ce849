"""Scrapes: one rendering of the metrics for everybody who asks for them at about the same time.

Rendering takes milliseconds of the event loop that tokens pass through, and asking takes a line. So renderings get a
share of the loop's time and no more, however many ask; nobody gets one that began before it was asked for. Gateway and
engine have one each.
"""

import asyncio
from collections.abc import Awaitable, Callable

REST = 9.0
"""How many times as long as a rendering took none follows: a tenth of the time is theirs at most."""


class Scrapes:
    """Of one process. Belongs to one event loop."""

    def __init__(self, render: Callable[[], bytes], prepare: Callable[[], Awaitable[object]] | None = None) -> None:
        """`prepare` is awaited before each rendering."""
        self._render = render
        self._prepare = prepare
        self._next: asyncio.Task[bytes] | None = None
        """The rendering that has not begun."""
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
