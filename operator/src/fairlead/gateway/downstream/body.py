"""Reading requests' bodies within limits, and noticing that a client has left."""

import asyncio
from collections.abc import Mapping
from types import TracebackType

from fairlead.gateway.downstream.client import Message, Receive
from fairlead.gateway.openai.errors import body_too_large, body_too_slow, too_many_bodies, unsupported_encoding


class ClientGone(Exception):
    """The client left before it had its answer."""


class BodyReader:
    """Reads bodies: each within a size and a time, and those that are only partly here within a size together, so that
    clients who send slowly cannot fill the memory."""

    def __init__(self, *, limit: int, timeout: float, total_limit: int) -> None:
        """Sizes are bytes; the time is seconds, from when a body begins to be read."""
        self._limit = limit
        self._timeout = timeout
        self._total_limit = total_limit
        self.num_bytes = 0
        """Of all bodies that are only partly here."""

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        """A whole body. Raises OpenAIError (408, 413, 415, 503), and ClientGone."""
        encoding = headers.get(b"content-encoding", b"identity")
        if encoding.lower() != b"identity":
            raise unsupported_encoding(encoding.decode("latin-1"))
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._limit:
            raise body_too_large(self._limit)
        body = bytearray()  # in one piece: a list of a million small parts would be many times their size
        try:
            async with asyncio.timeout(self._timeout):
                await self._read(receive, body)
        except TimeoutError as error:
            raise body_too_slow(self._timeout) from error
        finally:
            self.num_bytes -= len(body)
        return bytes(body)

    async def _read(self, receive: Receive, body: bytearray) -> None:
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            body += part
            self.num_bytes += len(part)
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
