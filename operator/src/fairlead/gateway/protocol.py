"""uvicorn's HTTP protocol with what it lacks: limits on the size of headers and the time to send them, errors in
OpenAI's shape, and a farewell that breaks no request of a client that keeps its connection."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fairlead.gateway.openai_errors import OpenAIError, bad_request, headers_too_large
from fairlead.gateway.settings import GatewaySettings

LINGER_SECONDS = 1.0
"""How long a connection is kept after its last answer while a drained server stops. Its client was promised that it may
be used again, and may do so at this very moment."""


def make_protocol(settings: GatewaySettings) -> "type[LimitedProtocol]":
    """The protocol class for uvicorn, which makes its instances itself and so cannot hand them settings."""

    class Protocol(LimitedProtocol):
        max_header_bytes = settings.max_header_bytes
        header_timeout = settings.header_timeout

    return Protocol


class LimitedProtocol(HttpToolsProtocol):
    """One client connection. From the first byte of a request, its headers must be whole in time and within size."""

    max_header_bytes: int
    header_timeout: float
    linger_seconds = 0.0
    """`LINGER_SECONDS` once the server drains; 0 = connections end with their answer, or at once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._reading_head = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._quiet_since = self.loop.time()
        """When it was opened or last answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._reading_head and self._head_bytes > self.max_header_bytes and not self.transport.is_closing():
            self._refuse(headers_too_large(self.max_header_bytes))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._reading_head:
            self._start_head()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._reading_head = False
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._quiet_since = self.loop.time()
        super().on_response_complete()

    def shutdown(self) -> None:
        """The server stops. What is asked within the linger is answered; that answer says that it is the last."""
        if not self.linger_seconds:
            super().shutdown()
        elif self._is_answering:
            self.timeout_keep_alive = self.linger_seconds  # type: ignore[assignment]  # uvicorn only adds it to a time
        else:
            left = self._quiet_since + self.linger_seconds - self.loop.time()
            self.loop.call_later(max(0.0, left), self._leave)

    def send_400_response(self, msg: str) -> None:
        """uvicorn's own refusal of what is not HTTP."""
        self._refuse(bad_request(msg, code="invalid_http"))

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _leave(self) -> None:
        if not self._is_answering and not self.transport.is_closing():
            self.transport.close()

    def _start_head(self) -> None:
        self._reading_head = True
        self._head_bytes = 0
        self._stop_timer()
        self._head_timer = self.loop.call_later(self.header_timeout, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, error: OpenAIError) -> None:
        """Answers outside of ASGI, because there is no request yet, and closes."""
        body = error.body()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()
