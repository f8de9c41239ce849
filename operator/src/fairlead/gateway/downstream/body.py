"""Reading requests' bodies within limits, and noticing that a client has left."""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

from fairlead.gateway.downstream.client import Message, Receive
from fairlead.gateway.openai.errors import body_too_large, body_too_slow, too_many_bodies, unsupported_encoding


class ClientGone(Exception):
    """The client left before it had its answer."""


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
    """Reads bodies: each within a size and a time, and all together within a size, so that clients who send slowly
    cannot fill the memory, nor those who send faster than is decoded."""

    def __init__(self, *, limit: int, timeout: float, total_limit: int) -> None:
        """Sizes are bytes; the time is seconds, from when a body begins to be read."""
        self._limit = limit
        self._timeout = timeout
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

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive, held: Held) -> bytes:
        """A whole body, which stays counted. Raises OpenAIError (408, 413, 415, 503), and ClientGone."""
        encoding = headers.get(b"content-encoding", b"identity")
        if encoding.lower() != b"identity":
            raise unsupported_encoding(encoding.decode("latin-1"))
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._limit:
            raise body_too_large(self._limit)
        body = bytearray()  # in one piece: a list of a million small parts would be many times their size
        try:
            async with asyncio.timeout(self._timeout):
                await self._read(receive, body, held)
        except TimeoutError as error:
            raise body_too_slow(self._timeout) from error
        return bytes(body)

    async def _read(self, receive: Receive, body: bytearray, held: Held) -> None:
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            body += message.get("body", b"")
            held.grown(sys.getsizeof(body))  # which is more than its length: it has room to grow
            more = message.get("more_body", False)
            if len(body) > self._limit:
                raise body_too_large(self._limit)
            if more and self.num_bytes > self._total_limit:
                raise too_many_bodies()


class ClientWatch:
    """While inside, the client's leaving cancels the task at once; it then leaves by ClientGone.

    `leave` does the same for a client that is only as good as gone.
    """

    def __init__(self, receive: Receive) -> None:
        """`receive`: of a request whose body was read, so that the next message can only be its disconnect."""
        self._receive = receive
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[Message] | None = None
        self._gone = False

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._watcher = asyncio.ensure_future(self._receive())
        self._watcher.add_done_callback(self.leave)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._watcher is not None:
            self._watcher.cancel()
        if self._gone and kind is asyncio.CancelledError and task is not None:
            task.uncancel()
            raise ClientGone from None

    def leave(self, _: object = None) -> None:
        """The client is gone: cancels the task, unless it is over already."""
        if self._task is not None and not self._gone:
            self._gone = True
            self._task.cancel()
