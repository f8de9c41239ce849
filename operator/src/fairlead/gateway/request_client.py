"""The client of one request: reading its body within limits, noticing its leaving, writing the answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from types import TracebackType
from typing import Any

from fairlead.gateway.openai.errors import Header, OpenAIError, body_refusal, body_stalled, unsupported_encoding
from fairlead_common.http.bodies import BodyError, BodyFault, BodyReader, HeldBody
from fairlead_common.http.connections import StallTimer
from fairlead_common.openai.translate import Translation
from fairlead_common.wire.messages import HEADER_REQUEST_ID

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = b"application/json"
_REQUEST_ID = HEADER_REQUEST_ID.encode()


class ClientGone(Exception):
    """The client left before it had its answer."""


class ClientWatch:
    """While inside, the client's leaving cancels the task at once, which then leaves by ClientGone. `leave` does the
    same for a stalled client."""

    def __init__(self, receive: Receive) -> None:
        """`receive`: of a request with a read body; the next message is the disconnect."""
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


class Client:
    """Reads one body and writes one answer. A slow client holds `write` back; without reading for `stall_timeout`
    seconds it counts as gone."""

    def __init__(
        self,
        receive: Receive,
        send: Send,
        *,
        request_id: str,
        stall_timeout: float,
        closing: bool = False,
        translation: Translation | None = None,
    ) -> None:
        self._receive = receive
        self._send = send
        self.request_id = request_id
        self.name: str | None = None
        """Whose API key came with the request; None where there are no keys."""
        self.closing = closing
        """Whether the answer closes the connection."""
        self.translation = translation
        """Of what it sends and gets; None = it speaks OpenAI's API."""
        self.before_write: Callable[[], Awaitable[object]] | None = None
        """Awaited before each part of the body."""
        self.watch = ClientWatch(receive)
        """To be entered when the body has been read."""
        self._timer = StallTimer(asyncio.get_running_loop(), stall_timeout, self.watch.leave)
        self.status = 0
        """The status sent; 0 = nothing was sent yet."""
        self.finished = False

    @property
    def started(self) -> bool:
        """Whether the client has got a byte: then nothing can be taken back."""
        return self.status != 0

    async def read(self, bodies: BodyReader, headers: Mapping[bytes, bytes], held: HeldBody) -> bytes:
        """The whole body, which stays counted. Raises OpenAIError (408, 413, 415, 503), and ClientGone."""
        _refuse_encoding(headers)
        try:
            return await bodies.read(headers.get(b"content-length", b""), self._receive, held)
        except BodyError as error:
            raise ClientGone if error.fault is BodyFault.CLIENT_GONE else body_refusal(error.fault, bodies) from error

    async def pieces(self, headers: Mapping[bytes, bytes], timeout: float) -> AsyncIterator[bytes]:
        """The body as it comes, of any size. `timeout`: longest wait for more, in seconds. Raises OpenAIError (408,
        415), and ClientGone."""
        _refuse_encoding(headers)
        more = True
        while more:
            try:
                async with asyncio.timeout(timeout):
                    message = await self._receive()
            except TimeoutError as error:
                raise body_stalled(timeout) from error
            if message["type"] == "http.disconnect":
                raise ClientGone
            more = message.get("more_body", False)
            if data := message.get("body", b""):
                yield data

    async def read_nothing(self) -> None:
        """Takes the body of a request without a body, a precondition of `watch`."""
        await self._receive()

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        """Status and headers; the request's id is added."""
        self.status = status
        all_headers = [(_REQUEST_ID, self.request_id.encode()), *headers]
        if self.translation is not None:
            all_headers.append((b"request-id", self.request_id.encode()))  # by this name in Anthropic's API
        if self.closing:
            all_headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": status, "headers": all_headers})

    async def start_events(self, status: int, headers: Iterable[Header]) -> None:
        """The same for a stream, of the type that the client's dialect has."""
        if self.translation is not None:
            own = (b"content-type", self.translation.stream_type.encode())
            headers = [own, *(header for header in headers if header[0] != own[0])]
        await self.start(status, headers)

    async def write(self, data: bytes) -> None:
        """More of the body; waits while the client is behind."""
        if self.before_write is not None:
            await self.before_write()
        self._timer.begin()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._timer.end()

    async def finish(self, data: bytes = b"") -> None:
        """The end of the body."""
        if self.before_write is not None:
            await self.before_write()
        self._timer.begin()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})
        self.finished = True
        self._timer.close()

    async def reply(
        self, status: int, body: bytes, headers: Iterable[Header] = (), *, content_type: bytes = JSON
    ) -> None:
        """A whole answer, translated for this client."""
        status, body = self.translated(status, body)
        length = str(len(body)).encode()
        await self.start(status, [(b"content-type", content_type), (b"content-length", length), *headers])
        await self.finish(body)

    def translated(self, status: int, body: bytes) -> tuple[int, bytes]:
        """Status and body of a whole answer in the client's dialect."""
        if self.translation is None:
            return status, body
        return self.translation.answer(status, body, self.request_id)

    def events(self, data: bytes) -> bytes:
        """Whole events of a stream in the client's dialect, perhaps none."""
        return data if self.translation is None else self.translation.events(data)

    async def refuse(self, error: OpenAIError) -> None:
        """The error as an answer; where the answer has begun, as the stream's last event."""
        if not self.started:
            await self.reply(error.status, error.body(), error.headers)
        elif not self.finished:
            await self.finish(self.events(error.event()))

    def close(self) -> None:
        """Whatever happened, no more is written."""
        self._timer.close()


class AbsentClient:
    """The connection of a client that is not there: never leaves, and keeps the answer."""

    STALL_SECONDS = 3600.0
    """No limit: what is written is read at once."""

    def __init__(self) -> None:
        self.status = 0
        """0 = there is no whole answer."""
        self.body = b""
        self._status = 0

    async def receive(self) -> Message:
        """Never returns."""
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def send(self, message: Message) -> None:
        self._status = message.get("status", self._status)
        self.body += message.get("body", b"")
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.status = self._status


def _refuse_encoding(headers: Mapping[bytes, bytes]) -> None:
    encoding = headers.get(b"content-encoding", b"identity")
    if encoding.lower() != b"identity":
        raise unsupported_encoding(encoding.decode("latin-1"))
