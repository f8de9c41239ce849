"""Reads requests' bodies over ASGI: each within a size and a time, and all together within a size, so that clients who
send slowly cannot fill the memory, nor those who send faster than is decoded."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""ASGI's."""


class BodyFault(Enum):
    """What keeps a body from being read to its end."""

    CLIENT_GONE = auto()
    TOO_LARGE = auto()
    TOO_SLOW = auto()
    TOO_MANY = auto()
    """All bodies together are too large."""


class BodyError(Exception):
    """A body is not read; `fault` says why."""

    def __init__(self, fault: BodyFault) -> None:
        super().__init__(fault.name)
        self.fault = fault


class Held:
    """What one body takes of the memory that a `BodyReader` gives to all, until it is released."""

    def __init__(self, bodies: "BodyReader") -> None:
        self._bodies = bodies
        self._num_bytes = 0
        self._is_released = False

    def grown(self, num_bytes: int) -> None:
        """It takes so much now."""
        if not self._is_released:
            self._bodies.num_bytes += num_bytes - self._num_bytes
            self._num_bytes = num_bytes

    def release(self) -> None:
        """It is counted elsewhere, or gone."""
        self.grown(0)
        self._is_released = True


class BodyReader:
    """Reads bodies for one server."""

    def __init__(self, *, limit: int, timeout: float, total_limit: int) -> None:
        """Sizes are bytes; the time is seconds, from when a body begins to be read. A body that is whole is never
        refused for the others: `total_limit` can be exceeded by those that come in one piece."""
        self.limit = limit
        self.timeout = timeout
        self._total_limit = total_limit
        self.num_bytes = 0
        """Of memory that all bodies take that are not released."""

    @contextmanager
    def held(self) -> Iterator[Held]:
        """For one body, which is released at the latest when left."""
        held = Held(self)
        try:
            yield held
        finally:
            held.release()

    async def read(self, declared_length: str | bytes, receive: Receive, held: Held) -> bytes:
        """A whole body, which stays counted. `declared_length` is the Content-Length, or empty. Raises BodyError."""
        if declared_length.isdigit() and int(declared_length) > self.limit:
            raise BodyError(BodyFault.TOO_LARGE)
        body = bytearray()  # in one piece: a list of a million small parts would be many times their size
        try:
            async with asyncio.timeout(self.timeout):
                await self._read(receive, body, held)
        except TimeoutError as error:
            raise BodyError(BodyFault.TOO_SLOW) from error
        return bytes(body)

    async def _read(self, receive: Receive, body: bytearray, held: Held) -> None:
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BodyError(BodyFault.CLIENT_GONE)
            body += message.get("body", b"")
            held.grown(sys.getsizeof(body))  # which is more than its length: it has room to grow
            more = message.get("more_body", False)
            if len(body) > self.limit:
                raise BodyError(BodyFault.TOO_LARGE)
            if more and self.num_bytes > self._total_limit:
                raise BodyError(BodyFault.TOO_MANY)
