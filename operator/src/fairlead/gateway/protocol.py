"""uvicorn's HTTP protocol with the limits it lacks: size of headers, time to send them, and errors in OpenAI's
shape."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fairlead.gateway.openai_errors import OpenAIError, bad_request, headers_too_large
from fairlead.gateway.settings import GatewaySettings


def make_protocol(settings: GatewaySettings) -> type[HttpToolsProtocol]:
    """The protocol class for uvicorn, which makes its instances itself and so cannot hand them settings."""

    class Protocol(LimitedProtocol):
        max_header_bytes = settings.max_header_bytes
        header_timeout = settings.header_timeout

    return Protocol


class LimitedProtocol(HttpToolsProtocol):
    """One client connection. From the first byte of a request, its headers must be whole in time and within size."""

    max_header_bytes: int
    header_timeout: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._reading_head = True
        self._head_timer: asyncio.TimerHandle | None = None

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

    def send_400_response(self, msg: str) -> None:
        """uvicorn's own refusal of what is not HTTP."""
        self._refuse(bad_request(msg, code="invalid_http"))

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
