"""HttpClient: requests over connections that are kept for the next. No redirects, no cookies, no compression.

Who calls it: the proxy of the gateway, KubeClient, and whoever asks engines, gateways and the API of OpenAI. One
exchange is one request, repeated only where the server had closed a kept connection just before. Leaving the `async
with` before the end of the answer closes the connection, which cancels the request. `lines` reads watches and other
streams of one JSON object per line.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

from fairlead_common.http.client_connection import ConnectFailed, Connection, ConnectionLost, request_head
from fairlead_common.http.origin import Origin, connect

STALE_SECONDS = 1.0
"""A kept connection that breaks within this time of a request was closed before the server saw the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """In seconds."""

    connect: float
    """For a connection, with TLS and the way through a proxy."""
    first_byte: float
    """From the request to the answer's first byte of body. Also how long the server may leave a request unread."""
    silence: float
    """From then on, between bytes."""
    whole: float | None = None
    """From the beginning to the answer's end; None = any."""


class HttpClient:
    """Not shared between event loops. Close it when done."""

    def __init__(
        self,
        *,
        max_idle: int = 100,
        idle_seconds: float = 15.0,
        max_requests: int | None = None,
        connect: Callable[[Origin, float], Awaitable[Connection]] = connect,
    ) -> None:
        """`max_idle`: connections kept per origin, each for `idle_seconds`, less than servers do. `max_requests`: at
        once, further requests wait; None = any number. `connect` opens a connection within a number of seconds."""
        self._connect = connect
        self._max_idle = max_idle
        self._idle_seconds = idle_seconds
        self._idle: dict[Origin, deque[Connection]] = {}
        self._turns: AbstractAsyncContextManager[Any] = (
            asyncio.Semaphore(max_requests) if max_requests else nullcontext()
        )

    @asynccontextmanager
    async def request(
        self,
        origin: Origin,
        method: str,
        target: str,
        limits: TimeLimits,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        body: bytes | None = None,
    ) -> AsyncIterator[Connection]:
        """Asks for `target`, a path as in URLs, with `params`; yields the answer after the headers.

        Only a GET is repeated: a repeated PUT would conflict with itself if the first was carried out. Raises
        TransportError, TimeoutError where the whole takes too long, and ValueError for invalid HTTP.
        """
        fields = {"host": origin.host_header, "user-agent": "fairlead", "accept-encoding": "identity", **headers}
        if body is not None:
            fields["content-length"] = str(len(body))
        if self._max_idle == 0:
            fields["connection"] = "close"
        if params:
            target = f"{target}?{urlencode(params)}"
        if origin.proxy is not None and origin.tls is None:
            target = f"http://{fields['host']}{target}"
            fields |= origin.proxy_headers
        head = request_head(method, target, fields)
        async with (
            asyncio.timeout(limits.whole),
            self._turns,
            self.exchange(origin, head, body or b"", limits, may_repeat=method == "GET") as response,
        ):
            yield response

    @asynccontextmanager
    async def exchange(
        self, origin: Origin, head: bytes, body: bytes, limits: TimeLimits, *, may_repeat: bool = True
    ) -> AsyncIterator[Connection]:
        """Sends an encoded request; yields the connection after the headers of the answer.

        The caller limits the whole time. Raises TransportError.
        """
        idle = self._idle.get(origin)
        clock = asyncio.get_running_loop().time
        sent_at = clock()
        while idle and (idle[-1].closed or sent_at - idle[-1].idle_since > self._idle_seconds):
            idle.pop().close()
        # The one that was used last is the least likely to be closed by the server.
        connection = idle.pop() if idle else await self._connect(origin, limits.connect)
        try:
            try:
                await _ask(connection, head, body, limits)
            except ConnectionLost as error:
                is_stale = connection.served and clock() - sent_at < STALE_SECONDS
                if error.begun or not is_stale or not may_repeat:
                    raise
                try:
                    connection = await self._connect(origin, limits.connect)
                except ConnectFailed:
                    raise error from None  # it did not just close an idle connection: it may have died on this request
                await _ask(connection, head, body, limits)
            head = body = b""  # answers may take long: nothing is kept that is not needed any more
            yield connection
        finally:
            idle = self._idle.setdefault(origin, deque()) if self._max_idle and connection.reusable else None
            if idle is not None and len(idle) < self._max_idle:
                connection.idle_since = clock()
                idle.append(connection)
            else:
                connection.close()

    def keep_only(self, origins: frozenset[Origin]) -> None:
        """Closes idle connections to all others."""
        for origin in self._idle.keys() - origins:
            for connection in self._idle.pop(origin):
                connection.close()

    def close(self) -> None:
        """Closes every idle connection."""
        self.keep_only(frozenset())


async def _ask(connection: Connection, head: bytes, body: bytes, limits: TimeLimits) -> None:
    await connection.send(head, body, first_byte_timeout=limits.first_byte, idle_timeout=limits.silence)
    await connection.head()


class LineTooLong(ValueError):
    """More than the limit came without an end of line."""


async def lines(response: Connection, *, limit: int | None = None) -> AsyncIterator[bytes]:
    """Complete lines without line ends, as they come, except blank lines.

    `limit`: bytes of the longest line, None = any. Raises LineTooLong, and TransportError.
    """
    async for batch in batches(response, limit=limit):
        for line in batch:
            if stripped := line.strip():
                yield stripped


async def batches(response: Connection, *, limit: int | None = None) -> AsyncIterator[list[bytes]]:
    """Lists of lines that came together, including empty lines. A long line is copied once. Raises as `lines` does."""
    begun: list[bytes] = []  # pieces of a line whose end has not come
    num_begun = 0
    while chunk := await response.chunk():
        *whole, rest = chunk.split(b"\n")
        if limit is not None and num_begun + len(whole[0] if whole else rest) > limit:
            raise LineTooLong(f"a line has more than {limit} bytes")
        if whole:
            whole[0] = b"".join((*begun, whole[0]))
            begun, num_begun = [], 0
        if rest:
            begun.append(rest)
            num_begun += len(rest)
        if whole:
            yield whole
