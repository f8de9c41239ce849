"""The gateways' Service: one port of this machine in front of every ready gateway pod, as kube-proxy does in a cluster.

Who starts it: the supervisor. The service moves bytes and knows nothing of HTTP. A new connection goes to the next
ready pod in turn and stays with the pod: a draining gateway keeps old connections and gets no new connections.
"""

import asyncio
import itertools
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fairlead.api.names import GATEWAY_NAME, GATEWAY_PORT, LABEL_NAME, SYSTEM_NAMESPACE
from fairlead.fleet.pods import ready_since
from fairlead_local.apiserver.operations import Operations
from fairlead_local.apiserver.resources import PODS

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
BACKLOG = 1024
_HIGH_WATER = 256 * 1024
"""Unsent bytes towards one side at which reading from the other side pauses."""

Address = tuple[str, int]
Endpoints = Callable[[], Sequence[Address]]
"""Returns the addresses that can take a new connection now."""


def ready_gateways(operations: Operations) -> list[Address]:
    """Addresses of the gateway pods that are ready and not going."""
    pods = operations.list(PODS, SYSTEM_NAMESPACE)
    return sorted(
        (pod["status"]["podIP"], GATEWAY_PORT)
        for pod in pods
        if (pod["metadata"].get("labels") or {}).get(LABEL_NAME) == GATEWAY_NAME and ready_since(pod) is not None
    )


def listening(host: str, port: int) -> socket.socket:
    """A listening socket, where connections wait; port 0 takes a free port. Raises OSError for a taken port."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def free_port(host: str) -> int:
    """A port that nobody has now."""
    with listening(host, 0) as probe:
        found: int = probe.getsockname()[1]
        return found


@asynccontextmanager
async def service(endpoints: Endpoints, listener: socket.socket) -> AsyncIterator[None]:
    """Forwards the listener's connections while the context lasts, and closes it."""
    turns, clients = itertools.count(), set[_Client]()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Client(endpoints, turns, clients), sock=listener, backlog=BACKLOG)
    try:
        yield
    finally:
        server.close()
        for client in tuple(clients):
            client.abort()


class _Half(asyncio.Protocol):
    """One side of a connection: input is written to the other side."""

    transport: asyncio.Transport | None = None
    other: "_Half | None" = None
    ended = False
    """Whether this side has ended its input."""

    @property
    def sink(self) -> asyncio.Transport | None:
        """The transport of the other side; None = not open."""
        return self.other.transport if self.other is not None else None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        if (sink := self.sink) is not None:
            sink.write(data)

    def eof_received(self) -> bool:
        self.ended = True
        if self.sink is not None and not self.sink.is_closing():
            self.sink.write_eof()
        return self.other is not None and not self.other.ended  # the answer may still be on its way

    def connection_lost(self, error: Exception | None) -> None:
        sink = self.sink
        self.transport = self.other = None
        if sink is not None:
            if error is None:
                sink.close()
            else:
                _reset(sink)

    def pause_writing(self) -> None:
        if self.sink is not None:
            self.sink.pause_reading()

    def resume_writing(self) -> None:
        if self.sink is not None:
            self.sink.resume_reading()


def _reset(transport: asyncio.Transport) -> None:
    """Ends a connection with a reset, so that a broken answer does not look like a finished one."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class _Client(_Half):
    """The side of the client, unread until a gateway has taken the connection."""

    def __init__(self, endpoints: Endpoints, turns: "itertools.count[int]", clients: set["_Client"]) -> None:
        """`clients`: the set of live clients, to which the client adds itself."""
        self._endpoints = endpoints
        self._turns = turns
        self._clients = clients
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.pause_reading()
        self._clients.add(self)
        self._opening = asyncio.get_running_loop().create_task(self._open(transport))

    def connection_lost(self, error: Exception | None) -> None:
        self._clients.discard(self)
        super().connection_lost(error)

    def abort(self) -> None:
        """Ends both sides now."""
        if self._opening is not None:
            self._opening.cancel()
        for half in (self, self.other):
            if half is not None and half.transport is not None:
                half.transport.abort()

    async def _open(self, transport: asyncio.Transport) -> None:
        """Connects the client to the next gateway in turn, or to any that accepts; without one, resets the client."""
        endpoints = self._endpoints()
        first = next(self._turns)
        for place in range(len(endpoints)):
            host, port = endpoints[(first + place) % len(endpoints)]
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    _, other = await asyncio.get_running_loop().create_connection(_Half, host, port)
            except (OSError, TimeoutError) as error:
                logger.warning("gateway %s:%d does not take a connection: %s", host, port, error)
                continue
            self.other, other.other = other, self
            if transport.is_closing():
                self.connection_lost(None)
            else:
                transport.resume_reading()
            return
        _reset(transport)
