"""Reads bodies of requests over ASGI: each within a size and a time, and all together within a size, so that neither
slow clients nor clients that send faster than bodies are decoded can fill the memory."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""ASGI's."""


class BodyFault(Enum):
    """Why reading a body ended early."""

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


class HeldBody:
    """Memory of one body, counted in a `BodyReader` until release."""

    def __init__(self, bodies: "BodyReader") -> None:
        self._bodies = bodies
        self._num_bytes = 0
        self._is_released = False

    def grown(self, num_bytes: int) -> None:
        """Sets the present size."""
        if not self._is_released:
            self._bodies.num_bytes += num_bytes - self._num_bytes
            self._num_bytes = num_bytes

    def release(self) -> None:
        """Ends counting: the body is counted elsewhere, or gone."""
        self.grown(0)
        self._is_released = True


class BodyReader:
    """Reads bodies for one server."""

    def __init__(self, *, limit: int, timeout: float, total_limit: int) -> None:
        """Sizes in bytes; `timeout` in seconds from the start of reading. Complete bodies are never refused because of
        other bodies: bodies that come in one piece may exceed `total_limit`."""
        self.limit = limit
        self.timeout = timeout
        self._total_limit = total_limit
        self.num_bytes = 0
        """Memory of all bodies that were not released, in bytes."""

    @property
    def is_full(self) -> bool:
        """Whether those that are not complete are to be refused."""
        return self.num_bytes > self._total_limit

    @contextmanager
    def held(self) -> Iterator[HeldBody]:
        """Counts one body until it is released, or the block ends."""
        held = HeldBody(self)
        try:
            yield held
        finally:
            held.release()

    async def read(self, declared_length: str | bytes, receive: Receive, held: HeldBody) -> bytes:
        """The complete body, still counted. `declared_length`: the Content-Length, or empty. Raises BodyError."""
        if declared_length.isdigit() and int(declared_length) > self.limit:
            raise BodyError(BodyFault.TOO_LARGE)
        body = bytearray()  # in one piece: a list of a million small parts would be many times their size
        try:
            async with asyncio.timeout(self.timeout):
                await self._read(receive, body, held)
        except TimeoutError as error:
            raise BodyError(BodyFault.TOO_SLOW) from error
        return bytes(body)

    async def _read(self, receive: Receive, body: bytearray, held: HeldBody) -> None:
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
            if more and self.is_full:
                raise BodyError(BodyFault.TOO_MANY)
