"""Timers of a connection: `StallTimer` notices that something awaited does not come, at no cost per chunk; `Countdown`
ends one wait."""

import asyncio
from collections.abc import Callable
from typing import TypeVarTuple, Unpack

Arguments = TypeVarTuple("Arguments")


class StallTimer:
    """Calls `on_stall` once when a wait between `begin` and `end` lasts longer than `limit` seconds.

    `begin` and `end` only note the time; one timer of the loop looks at it now and then. An `asyncio.timeout` around
    every chunk would cost more than forwarding the chunk does.
    """

    __slots__ = ("_handle", "_loop", "_on_stall", "_since", "limit")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float, on_stall: Callable[[], object]) -> None:
        self.limit = limit
        self._loop = loop
        self._on_stall: Callable[[], object] | None = on_stall
        self._since: float | None = None
        self._handle: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Waiting starts now."""
        self._since = self._loop.time()
        if self._handle is None:
            self._handle = self._loop.call_later(self.limit, self._look)

    def end(self) -> None:
        """What was awaited has come."""
        self._since = None

    def restart(self, limit: float) -> None:
        """From now on another limit; nothing is awaited."""
        self._since = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self.limit = limit

    def close(self) -> None:
        """No more calls. Whoever was to be called is forgotten: it mostly knows the timer, too, and only the garbage
        collector would find the two."""
        self.restart(self.limit)
        self._on_stall = None

    def _look(self) -> None:
        self._handle = None
        if self._since is None or self._on_stall is None:
            return
        remaining = self._since + self.limit - self._loop.time()
        if remaining <= 0:
            self._since = None
            self._on_stall()
        else:
            self._handle = self._loop.call_later(remaining, self._look)


class Countdown:
    """Calls something once, unless it is stopped, or started anew, before."""

    __slots__ = ("_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        """Whether it was started and not stopped; also after the call."""
        return self._handle is not None

    def start(self, seconds: float, call: Callable[[Unpack[Arguments]], object], *args: *Arguments) -> None:
        """Calls `call` after so many seconds."""
        self.stop()
        self._handle = self._loop.call_later(seconds, call, *args)

    def stop(self) -> None:
        """No call."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
