"""The client side of the data path: requests to replicas over kept-alive connections.

Who calls it: the proxy. One `exchange` is one request to one replica: no retries but one, of a kept connection that
the replica had closed just before. Leaving the `async with` before the answer's end closes the connection, which
cancels the request.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from fairlead.gateway.upstream.connection import AnswerTooLarge, ConnectFailed, Connection, ConnectionLost

Address = tuple[str, int]

STALE_SECONDS = 1.0
"""A kept connection that breaks within this time of a request was closed before the replica saw the request."""


class Timeouts(Protocol):
    """The settings that matter here (`GatewaySettings` has them)."""

    @property
    def connect_timeout(self) -> float: ...
    @property
    def idle_timeout(self) -> float: ...
    @property
    def max_idle_connections(self) -> int: ...


class UpstreamResponse:
    """Status, headers (names in lower case), and the body as it comes."""

    __slots__ = ("_connection", "headers", "status")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.status = connection.status
        self.headers = connection.headers

    async def chunk(self) -> bytes:
        """The next bytes of the body; empty at its end. Raises UpstreamError."""
        return await self._connection.chunk()

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises UpstreamError, and AnswerTooLarge where it is larger than `limit` bytes."""
        chunks, size = [], 0
        while chunk := await self._connection.chunk():
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                raise AnswerTooLarge(f"more than {limit} bytes")
        return b"".join(chunks)


class Upstream:
    """Connections to all replicas, kept per address. Close it when done."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._idle: dict[Address, deque[Connection]] = {}

    @asynccontextmanager
    async def exchange(
        self, address: Address, head: bytes, body: bytes, *, first_byte_timeout: float
    ) -> AsyncIterator[UpstreamResponse]:
        """Sends a request; yields when the headers of its answer are there. Raises UpstreamError."""
        connection = self._kept(address) or await self._connect(address)
        sent_at = asyncio.get_running_loop().time()
        try:
            try:
                await self._ask(connection, head, body, first_byte_timeout)
            except ConnectionLost as error:
                is_stale = connection.served and asyncio.get_running_loop().time() - sent_at < STALE_SECONDS
                if error.begun or not is_stale:
                    raise
                try:
                    connection = await self._connect(address)
                except ConnectFailed:
                    raise error from None  # it did not just close an idle connection: it may have died on this request
                await self._ask(connection, head, body, first_byte_timeout)
            head = body = b""  # answers may take long: nothing is kept that is not needed any more
            yield UpstreamResponse(connection)
        finally:
            self._keep_or_close(address, connection)

    def keep_only(self, addresses: frozenset[Address]) -> None:
        """Closes idle connections to replicas that left."""
        for address in self._idle.keys() - addresses:
            for connection in self._idle.pop(address):
                connection.close()

    def close(self) -> None:
        """Closes every idle connection."""
        self.keep_only(frozenset())

    async def _ask(self, connection: Connection, head: bytes, body: bytes, first_byte_timeout: float) -> None:
        idle_timeout = self._timeouts.idle_timeout
        await connection.send(head, body, first_byte_timeout=first_byte_timeout, idle_timeout=idle_timeout)
        await connection.head()

    async def _connect(self, address: Address) -> Connection:
        loop = asyncio.get_running_loop()
        host, port = address
        try:
            async with asyncio.timeout(self._timeouts.connect_timeout):
                _, connection = await loop.create_connection(lambda: Connection(loop), host, port)
        except TimeoutError as error:
            limit = self._timeouts.connect_timeout
            raise ConnectFailed(f"no connection to {host}:{port} within {limit:g} seconds") from error
        except OSError as error:
            raise ConnectFailed(f"no connection to {host}:{port}: {error.strerror or error}") from error
        return connection

    def _kept(self, address: Address) -> Connection | None:
        """An idle connection, the one used last: it is the least likely to be closed by the replica."""
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if not connection.closed:
                return connection
        return None

    def _keep_or_close(self, address: Address, connection: Connection) -> None:
        idle = self._idle.setdefault(address, deque())
        if not connection.reusable or len(idle) >= self._timeouts.max_idle_connections:
            connection.close()
        else:
            idle.append(connection)
