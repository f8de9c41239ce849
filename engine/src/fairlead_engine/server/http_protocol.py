"""uvicorn's HTTP protocol with limits that it lacks: on the size of a request's headers, the time to send them, and
requests ahead of their turn.

Engines are for gateways alone, but whoever reaches the port must not be able to hold its connections for nothing.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fairlead_engine.server.refusals import Outcome, Refusal

MAX_HEADER_BYTES = 64 * 1024
"""Largest request line and headers together."""
HEADER_TIMEOUT_SECONDS = 20.0
"""Longest time from a request's first byte, or a connection's beginning, until its headers are whole."""

MAX_REQUESTS_AHEAD = 100
"""Requests that one connection may have waiting behind the one that is being answered; more end it."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection. A head that is too large is answered with 431, one that is too slow is cut."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._reading_head = True
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._reading_head and self._head_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._refuse(431, f"the request's headers are larger than the {MAX_HEADER_BYTES} bytes that are taken")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._reading_head:
            self._begin_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        if len(self.pipeline) >= MAX_REQUESTS_AHEAD:
            raise ValueError("too many requests ahead of their turn")  # to the parser, which stops and has us refuse
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's own refusal of what is not HTTP."""
        self._refuse(400, "the request is not valid HTTP")

    def _begin_head(self) -> None:
        self._reading_head = True
        self._head_bytes = 0
        self._stop_timer()
        self._deadline = self.loop.call_later(HEADER_TIMEOUT_SECONDS, self.transport.abort)

    def _end_head(self) -> None:
        self._reading_head = False
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: int, message: str) -> None:
        """Answers outside of ASGI, because there is no request yet, and closes."""
        self._end_head()
        body = Refusal(status, Outcome.INVALID, "invalid_request_error", message).body()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
