"""One request through the gateway's application without HTTP: the same keys, queue, routing, metrics and errors."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fairlead.gateway.openai.errors import Header
from fairlead.gateway.request_client import ClientGone, Message, Receive, Send

App = Callable[[dict[str, object], Receive, Send], Awaitable[None]]
OnEvents = Callable[[bytes], Awaitable[object]]
"""Is given whole events of a stream as they come."""
_EVENT_STREAM = b"text/event-stream"


@dataclass(frozen=True, slots=True)
class AppAnswer:
    """A whole answer, or the end of a stream (with an empty body)."""

    status: int
    """0 = no answer: the client was gone, or did not read."""
    headers: tuple[Header, ...]
    body: bytes
    is_stream: bool
    """Whether events were handed on."""


class AppExchange:
    """A single request, with the whole body at once. Collects the answer, or hands on the events of a stream."""

    def __init__(self, app: App, on_events: OnEvents | None = None) -> None:
        """`on_events`: None = collects streams, too."""
        self._app = app
        self._on_events = on_events
        self._body: bytes | None = None
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._headers: tuple[Header, ...] = ()
        self._read = bytearray()
        self._is_stream = False
        self._finished = False

    async def run(self, path: str, headers: list[Header], body: bytes) -> AppAnswer:
        """Serves a POST. Cancelled by an application that was cancelled."""
        self._body = body
        scope: dict[str, object] = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": headers,
            "query_string": b"",
        }
        await self._app(scope, self._receive, self._send)
        return AppAnswer(self._status if self._finished else 0, self._headers, bytes(self._read), self._is_stream)

    def leave(self) -> None:
        """The client is gone: the engine stops computing."""
        if not self._gone.done():
            self._gone.set_result(None)

    async def _receive(self) -> Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.shield(self._gone)
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], tuple(message["headers"])
            is_stream = dict(self._headers).get(b"content-type", b"").startswith(_EVENT_STREAM)
            self._is_stream = is_stream and self._on_events is not None
            return
        data = message.get("body", b"")
        if not self._is_stream or self._on_events is None:
            self._read += data
        elif data:
            try:
                await self._on_events(data)
            except Exception as error:  # of any type, for a call that has ended
                raise ClientGone from error
        self._finished = not message.get("more_body", False)
