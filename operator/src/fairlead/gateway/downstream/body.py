"""Reading requests' bodies within limits, and noticing that a client has left."""

import asyncio
from collections.abc import Mapping
from types import TracebackType

from fairlead.gateway.downstream.request_client import Message, Receive
from fairlead.gateway.openai.errors import body_refusal, unsupported_encoding
from fairlead_protocol.http.bodies import BodyError, BodyFault, BodyReader, Held


class ClientGone(Exception):
    """The client left before it had its answer."""


async def read_body(bodies: BodyReader, headers: Mapping[bytes, bytes], receive: Receive, held: Held) -> bytes:
    """A whole body, which stays counted. Raises OpenAIError (408, 413, 415, 503), and ClientGone."""
    encoding = headers.get(b"content-encoding", b"identity")
    if encoding.lower() != b"identity":
        raise unsupported_encoding(encoding.decode("latin-1"))
    try:
        return await bodies.read(headers.get(b"content-length", b""), receive, held)
    except BodyError as error:
        raise ClientGone if error.fault is BodyFault.CLIENT_GONE else body_refusal(error.fault, bodies) from error


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
