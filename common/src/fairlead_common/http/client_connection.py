"""One HTTP/1.1 connection to a server: the parser of httptools on an asyncio transport, with nothing in between.

Made by `origin`, kept by `client`. The connection knows requests, responses, limits and silence; neither how it was
opened nor retries. Bytes of the response are passed on at once; a slow reader pauses the socket, and a server that does
not read pauses the request.
"""

import asyncio
import re
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from typing import Any, Self, cast

import httptools

from fairlead_common.http.connections import StallTimer
from fairlead_common.http.framing import RequestMeter

HIGH_WATER_BYTES = 256 * 1024
"""Unread response bytes at which the socket is paused."""
WRITE_SLICE_BYTES = 256 * 1024
MAX_HEAD_BYTES = 64 * 1024
"""Largest response status line and headers, and most bytes that frame a body beyond the body's own size."""
MAX_FIELDS = 128
"""Most headers and trailers of a response together."""
KEEP_ALIVE_OPTIONS = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""The kernel checks that the other host exists, and gives up after about 30 seconds: a lost node closes no connection,
and timeouts for silence have to be long."""
MAX_STATUS = 599
"""Largest status with a meaning, which can be passed on to a client."""
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_TARGET = re.compile(r"[!-~]+")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")


class TransportError(Exception):
    """There is no whole answer; the text says why. `begun`: whether any byte of one had come."""

    def __init__(self, message: str, *, begun: bool = False) -> None:
        super().__init__(message)
        self.begun = begun


class ConnectFailed(TransportError):
    """No connection, or none in time."""


class ConnectionLost(TransportError):
    """The connection broke before the answer was complete."""


class ServerSilent(TransportError):
    """Nothing came for too long."""


class ProtocolViolation(TransportError):
    """The answer is not HTTP, or has too many headers, trailers or bytes of framing."""


class AnswerTooLarge(TransportError):
    """An answer, or one event of a stream, is too large. The server is well; the text tells the limit."""


def cause_of(error: BaseException) -> str:
    """Why a request got no answer, in words for people."""
    if isinstance(error, (TimeoutError, ServerSilent)):
        return "no answer in time"
    return str(error) or type(error).__name__


def request_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """The bytes of a request line and headers. Raises ValueError, without the value, for a value that would end the
    line or be invalid HTTP."""
    if not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target):
        raise ValueError(f"{target!r} cannot be asked for: a path has no spaces and no control characters")
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r} cannot be sent: it has control characters, or is not Latin-1")
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {target} HTTP/1.1\r\n{fields}\r\n".encode("latin-1")


class Connection(asyncio.Protocol):
    """One exchange at a time: `send`, then `head`, then `chunk` until it is empty, or `read`. `reusable` says whether
    another may follow. Header names are in lower case."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set by connection_made, before any use
        self._timer = StallTimer(loop, 0.0, self._on_silence)
        self._idle_timeout = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._write_paused = False
        self.closed = False
        self.served = 0
        """Exchanges completed."""
        self.idle_since = 0.0
        """Time of the loop since which the connection is idle; set by the keeper."""
        self._reset()

    def _reset(self) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._meter = RequestMeter(max_bytes=MAX_HEAD_BYTES, max_fields=MAX_FIELDS)
        self._is_sent = False
        self._begun = False
        self._head_complete = False
        self._complete = False
        self._keep_alive = False
        self._self_delimited = False
        self._error: TransportError | None = None
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._read_paused = False

    # What users call.

    async def send(self, head: bytes, body: bytes, *, first_byte_timeout: float, idle_timeout: float) -> None:
        """Writes a request. Returns early when the server answers before reading everything. Raises ConnectionLost.

        The server may be silent for `first_byte_timeout` seconds until the body of the answer begins (engines may send
        headers before computing), and for `idle_timeout` seconds from then on.
        """
        if self.closed:
            raise ConnectionLost("the connection was lost")
        self._reset()
        self._idle_timeout = idle_timeout
        self._timer.restart(first_byte_timeout)
        if len(body) <= WRITE_SLICE_BYTES:
            head, body = head + body, b""
        self._transport.write(head)
        for start in range(0, len(body), WRITE_SLICE_BYTES):
            while self._write_paused and self._error is None and not self._head_complete:
                await self._something()
            if self._head_complete or self._error is not None:
                return
            self._transport.write(body[start : start + WRITE_SLICE_BYTES])
        self._is_sent = True

    async def head(self) -> None:
        """Waits for status and headers. Raises TransportError."""
        while not self._head_complete:
            self._raise_error()
            await self._something()

    async def chunk(self) -> bytes:
        """The next bytes of the body, as many as there are; empty at its end. Raises TransportError."""
        while not self._chunks:
            if self._complete:
                return b""
            self._raise_error()
            await self._something()
        if len(self._chunks) == 1:
            data = self._chunks.popleft()
        else:
            data = b"".join(self._chunks)
            self._chunks.clear()
        self._buffered = 0
        if self._timer.limit != self._idle_timeout:
            self._timer.restart(self._idle_timeout)
        if self._read_paused:
            self._read_paused = False
            self._transport.resume_reading()
        return data

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises TransportError, and AnswerTooLarge where it is larger than `limit` bytes."""
        chunks, size = [], 0
        while chunk := await self.chunk():
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                raise AnswerTooLarge(f"more than {limit} bytes")
        return b"".join(chunks)

    async def start_tls(self, tls: ssl.SSLContext, server_name: str) -> Self:
        """A TLS connection to the server behind a proxy that has just opened the tunnel.

        Do not use the connection to the proxy afterwards. Raises OSError.
        """
        if self._chunks:
            raise ProtocolViolation("it answered in the server's place", begun=True)
        self._timer.close()
        inner = type(self)(self._loop)
        transport = await self._loop.start_tls(self._transport, inner, tls, server_hostname=server_name)
        assert transport is not None
        inner.connection_made(transport)
        return inner

    @property
    def reusable(self) -> bool:
        """Whether the exchange is over and the server keeps the connection open. After an answer to an incomplete
        request the server may await the rest, and would read the next request as the rest."""
        return self._complete and self._is_sent and self._keep_alive and not self._chunks and not self.closed

    def close(self) -> None:
        """Ends the connection at once; an engine notices, and stops computing."""
        self._timer.close()
        if not self.closed:
            self.closed = True  # the transport tells of it later, when another request might have been begun
            self._transport.abort()

    async def _something(self) -> None:
        """Waits until there is news."""
        self._waiter = self._loop.create_future()
        self._timer.begin()
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._timer.end()

    def _raise_error(self) -> None:
        if (error := self._error) is not None:  # another of the kind: what is raised knows us, by its traceback
            raise type(error)(*error.args, begun=error.begun)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, kind: type[TransportError], message: str) -> None:
        if self._error is None and not self._complete:
            self._error = kind(message, begun=self._begun)
        self._wake()

    def _violated(self, what: str) -> None:
        self._fail(ProtocolViolation, what)
        self.close()

    def _on_silence(self) -> None:
        self._fail(ServerSilent, f"nothing came for {self._timer.limit:g} seconds")
        self.close()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but inheritance
        sock: socket.socket = transport.get_extra_info("socket")
        if sock.family == socket.AF_UNIX:  # its other end is on this host
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE_OPTIONS.items():
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self._begun = True
        self._meter.packet(len(data))
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._violated("it goes on in another protocol, which nobody asked for")
            return
        except httptools.HttpParserError as error:
            self._violated(f"not HTTP: {error.__context__ or error}")  # the context: what a callback below found
            return
        if excess := self._meter.check():
            self._violated(f"more {excess} than the {MAX_HEAD_BYTES} bytes and {MAX_FIELDS} fields that are taken")

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._timer.close()
        self._parser = None  # knows us, too: garbage to look for
        if error is None and self._head_complete and not self._self_delimited:
            self._complete = True  # a body without length ends with its connection
        self._fail(ConnectionLost, f"the connection was lost{f' ({error})' if error else ''}")

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._wake()

    # What httptools calls.

    def on_message_begin(self) -> None:
        if self._complete:
            raise ValueError("an answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._meter.field()
        if self._meter.excess:
            raise ValueError(f"more than {MAX_FIELDS} headers and trailers")
        if self._meter.in_head:  # trailers are dropped: nobody asks for them
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:
            return
        if self.status > MAX_STATUS:
            raise ValueError(f"the status {self.status}")
        self._meter.begin_body()
        self._self_delimited = b"content-length" in self.headers or b"transfer-encoding" in self.headers
        self._keep_alive = self._parser.should_keep_alive()
        self._head_complete = True
        self._wake()

    def on_body(self, data: bytes) -> None:
        self._meter.content(len(data))
        self._chunks.append(data)
        self._buffered += len(data)
        if self._buffered > HIGH_WATER_BYTES and not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if self.status < 200:  # 100 Continue and the like: the answer is still to come
            self.headers = {}
            return
        self._meter.end()
        self._complete = True
        self.served += 1
        self._wake()
