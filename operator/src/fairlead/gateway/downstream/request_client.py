"""The client of one request: its ASGI `send`, with what has been sent, and a limit on how long it may not read."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from fairlead.gateway.openai.errors import Header, OpenAIError
from fairlead.gateway.stall import StallTimer
from fairlead_protocol.messages import HEADER_REQUEST_ID

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = b"application/json"
_REQUEST_ID = HEADER_REQUEST_ID.encode()


class Client:
    """Writes one answer. A client that reads slowly holds `write` back; one that reads nothing counts as gone."""

    def __init__(
        self,
        send: Send,
        *,
        request_id: str,
        stall_timeout: float,
        on_gone: Callable[[], object],
        closing: bool = False,
    ) -> None:
        """`on_gone`: called when nothing was read for `stall_timeout` seconds; should cancel whoever writes."""
        self._send = send
        self.request_id = request_id
        self.name: str | None = None
        """Whose API key came with the request; None where there are no keys."""
        self.closing = closing
        """Whether the answer will say that the connection is not to be used again."""
        self._timer = StallTimer(asyncio.get_running_loop(), stall_timeout, on_gone)
        self.status = 0
        """The status sent; 0 = nothing was sent yet."""
        self.finished = False

    @property
    def started(self) -> bool:
        """Whether the client has got a byte: then nothing can be taken back."""
        return self.status != 0

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        """Status and headers; the request's id is added."""
        self.status = status
        all_headers = [(_REQUEST_ID, self.request_id.encode()), *headers]
        if self.closing:
            all_headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": status, "headers": all_headers})

    async def write(self, data: bytes) -> None:
        """More of the body; waits while the client is behind."""
        self._timer.begin()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._timer.end()

    async def finish(self, data: bytes = b"") -> None:
        """The end of the body."""
        self._timer.begin()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})
        self.finished = True
        self._timer.close()

    async def reply(
        self, status: int, body: bytes, headers: Iterable[Header] = (), *, content_type: bytes = JSON
    ) -> None:
        """A whole answer."""
        length = str(len(body)).encode()
        await self.start(status, [(b"content-type", content_type), (b"content-length", length), *headers])
        await self.finish(body)

    async def refuse(self, error: OpenAIError) -> None:
        """The error as an answer; where the answer has begun, as the stream's last event."""
        if not self.started:
            await self.reply(error.status, error.body(), error.headers)
        elif not self.finished:
            await self.finish(error.event())

    def close(self) -> None:
        """Whatever happened, no more is written."""
        self._timer.close()
