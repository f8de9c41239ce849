"""The client side of the data path: requests to replicas over kept-alive connections.

Who calls it: the proxy. One `exchange` is one request to one replica: no retries but one, of a kept connection that
the replica had closed just before. Leaving the `async with` before the answer's end closes the connection, which
cancels the request.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.upstream.connection import ConnectFailed, Connection, ConnectionLost

Address = tuple[str, int]

STALE_SECONDS = 1.0
"""A kept connection that breaks within this time of a request was closed before the replica saw the request."""


class Upstream:
    """Connections to all replicas, kept per address. Close it when done."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._idle: dict[Address, deque[Connection]] = {}

    @asynccontextmanager
    async def exchange(
        self, address: Address, head: bytes, body: bytes, *, first_byte_timeout: float
    ) -> AsyncIterator[Connection]:
        """Sends a request; yields the connection when the headers of its answer are there. Raises UpstreamError."""
        idle = self._idle.get(address) or deque[Connection]()
        while idle and idle[-1].closed:
            idle.pop()
        # The one that was used last is the least likely to be closed by the replica.
        connection = idle.pop() if idle else await self._connect(address)
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
            yield connection
        finally:
            idle = self._idle.setdefault(address, deque())
            if connection.reusable and len(idle) < self._settings.max_idle_connections:
                idle.append(connection)
            else:
                connection.close()

    def keep_only(self, addresses: frozenset[Address]) -> None:
        """Closes idle connections to replicas that left."""
        for address in self._idle.keys() - addresses:
            for connection in self._idle.pop(address):
                connection.close()

    def close(self) -> None:
        """Closes every idle connection."""
        self.keep_only(frozenset())

    async def _ask(self, connection: Connection, head: bytes, body: bytes, first_byte_timeout: float) -> None:
        idle_timeout = self._settings.idle_timeout
        await connection.send(head, body, first_byte_timeout=first_byte_timeout, idle_timeout=idle_timeout)
        await connection.head()

    async def _connect(self, address: Address) -> Connection:
        loop = asyncio.get_running_loop()
        host, port = address
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                _, connection = await loop.create_connection(lambda: Connection(loop), host, port)
        except TimeoutError as error:
            limit = self._settings.connect_timeout
            raise ConnectFailed(f"no connection to {host}:{port} within {limit:g} seconds") from error
        except OSError as error:
            raise ConnectFailed(f"no connection to {host}:{port}: {error.strerror or error}") from error
        return connection
