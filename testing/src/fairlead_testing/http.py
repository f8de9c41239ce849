"""Servers whose handlers may do what real ones prevent: a small HTTP/1.1 server that cuts connections or falls silent,
and a server of bytes."""

import asyncio
import json
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

BACKLOG = 2048
"""Connections that may wait to be accepted: tests open hundreds at once."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    """Names in lower case."""
    body: bytes = b""

    def json(self) -> dict[str, Any]:
        """The body, which must be a JSON object."""
        document: dict[str, Any] = json.loads(self.body)
        return document


class Responder:
    """Writes one answer: `json`, `whole`, or `start`, `chunk`…, `end`; or `abort`, which cuts the connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def json(self, status: int, document: Any, headers: Mapping[str, str] | None = None) -> None:
        """A whole answer."""
        await self.whole(status, json.dumps(document).encode(), headers)

    async def whole(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """A whole answer; `body` is JSON where the headers do not say otherwise."""
        named = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        self._writer.write(_head(status, named) + body)
        await self._writer.drain()

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Status and headers of an answer of unknown length."""
        self._writer.write(_head(status, {"transfer-encoding": "chunked", **headers}))
        await self._writer.drain()

    async def chunk(self, data: bytes) -> None:
        """More of the body."""
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._writer.drain()

    async def end(self) -> None:
        """The end of the body."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def abort(self) -> None:
        """Cuts the connection, as the death of a process does."""
        self._writer.transport.abort()


Handler = Callable[[RecordedRequest, Responder], Awaitable[None]]


async def serve_http(handler: Handler, *, host: str = "127.0.0.1", port: int = 0) -> asyncio.Server:
    """Serves until closed. A handler is cancelled when its client leaves before the end of the answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _serve_connection(handler, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client left, or the server is being closed
        finally:
            writer.close()

    return await asyncio.start_server(serve, host, port, backlog=BACKLOG)


class HttpProgram(ABC):
    """A program that answers at `url` from `listen` on."""

    def __init__(self, host: str, port: int) -> None:
        """`port`: 0 = any free one."""
        self.host, self.port = host, port
        self._responders: set[Responder] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Without /v1."""
        return f"http://{self.host}:{self.port}"

    async def listen(self) -> None:
        self._server = await serve_http(self._answer, host=self.host, port=self.port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Stops listening; later connections are refused."""
        if self._server is not None:
            self._server.close()

    def cut(self) -> None:
        """Stops listening and cuts every connection."""
        self.stop()
        self.cut_connections()

    def cut_connections(self) -> None:
        for responder in list(self._responders):
            responder.abort()

    async def _answer(self, request: RecordedRequest, responder: Responder) -> None:
        self._responders.add(responder)
        try:
            await self._respond(request, responder)
        finally:
            self._responders.discard(responder)

    @abstractmethod
    async def _respond(self, request: RecordedRequest, responder: Responder) -> None: ...


async def _serve_connection(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Request after request, until the client leaves."""
    first_byte = b""
    while True:
        request = await _read_request(reader, first_byte)
        handling = asyncio.ensure_future(handler(request, Responder(writer)))
        next_byte = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((handling, next_byte), return_when=asyncio.FIRST_COMPLETED)
            if not handling.done() and not next_byte.result():
                raise ConnectionResetError("the client left")
            await handling
        finally:
            handling.cancel()
            await asyncio.gather(handling, return_exceptions=True)
            next_byte.cancel()
            await asyncio.wait((next_byte,))
        first_byte = b"" if next_byte.cancelled() else next_byte.result()


async def _read_request(reader: asyncio.StreamReader, first_byte: bytes) -> RecordedRequest:
    head = (first_byte + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request_line, *lines = head.rstrip("\r\n").split("\r\n")
    words = request_line.split(" ", 2)
    if len(words) != 3:  # such as the preface of HTTP/2, with which clients look for gRPC
        raise ConnectionResetError(f"no request of HTTP/1.1: {request_line!r}")
    method, path, _ = words
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return RecordedRequest(method, path, headers, body)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} -\r\n{lines}\r\n".encode("latin-1")


BytesHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(
    handler: BytesHandler, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """The port where every connection is handled by `handler`, and then closed."""

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(guarded, host, 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
