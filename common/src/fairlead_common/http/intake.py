"""Reads input of clients, and begins requests, in a small share of each round of the event loop.

An event loop reads all readable connections before any other work, so input on thousands of connections at once would
hold up tokens of other requests until everything is parsed. Here data waits in the kernel, at no cost, and a few
connections are read in each round, in the order of becoming readable. Requests begin in order, too, some in each round.

Pipelined requests, which arrive before the answer to the previous request on the connection, wait parsed (`Ahead`). A
request of thirty bytes takes thousands of bytes in parsed form, as objects for the garbage collector to visit, so a
bound holds for each connection, and for all connections of a server together.
"""

import asyncio
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Sized

READ_BYTES = 16 * 1024
"""Read from one connection at a time. May still be hundreds of tiny requests or thousands of tiny chunks of a body,
which take some milliseconds."""
READS_PER_ROUND = 16
"""Connections read in a round; each may complete a request that takes a millisecond or two on the loop."""
SECONDS_PER_ROUND = 0.005
"""Reading goes on in the next round after this."""
BEGINNINGS_PER_ROUND = 8
"""Requests started in a round: new requests, and requests that waited for an earlier answer on the connection."""


class Intake:
    """Shared by the connections of one server. Belongs to the loop on which the connections are opened."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._inlets: dict[int, Inlet] = {}
        """By file descriptor."""
        self._ready: deque[int] = deque()
        """Readable connections, in turn."""
        self._beginnings: deque[Callable[[], object]] = deque()
        self._is_reading = False
        self._begins_later = False
        """Whether a round that begins requests is scheduled."""

    def open(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> "Inlet":
        """Takes over from the event loop, which does not read this connection from the next round on."""
        loop = asyncio.get_running_loop()
        if not self._inlets:
            loop.add_reader(self._epoll.fileno(), self._read)
        inlet = Inlet(self._epoll, transport, protocol, self._closed)
        self._inlets[inlet.descriptor] = inlet
        loop.call_soon(inlet.take_over)  # a loop begins to read when it has told of the connection, not before
        return inlet

    def begin(self, beginning: Callable[[], object]) -> None:
        """Calls `beginning` in turn, possibly in this round."""
        self._beginnings.append(beginning)
        if not self._is_reading:
            self._begin_later()

    def _read(self) -> None:
        """A round's share of reading."""
        if not self._ready:
            self._ready.extend(descriptor for descriptor, _ in self._epoll.poll(0, READS_PER_ROUND))
        until = time.monotonic() + SECONDS_PER_ROUND
        self._is_reading = True
        try:
            while self._ready:
                if (inlet := self._inlets.get(self._ready.popleft())) is not None:
                    inlet.read()
                if time.monotonic() >= until:
                    break
        finally:
            self._is_reading = False
            if not self._begins_later:
                self._begin()

    def _begin(self) -> None:
        """A round's share of beginning."""
        self._begins_later = False
        for _ in range(min(BEGINNINGS_PER_ROUND, len(self._beginnings))):
            self._beginnings.popleft()()
        if self._beginnings:
            self._begin_later()

    def _begin_later(self) -> None:
        if not self._begins_later:
            self._begins_later = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _closed(self, inlet: "Inlet") -> None:
        self._inlets.pop(inlet.descriptor, None)
        if not self._inlets:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())


class Inlet:
    """Input of one connection. Reading is paused and resumed here instead of at the transport."""

    def __init__(
        self,
        epoll: select.epoll,
        transport: asyncio.Transport,
        protocol: asyncio.Protocol,
        on_closed: Callable[["Inlet"], object],
    ) -> None:
        self.descriptor: int = transport.get_extra_info("socket").fileno()
        self._epoll = epoll
        self._transport = transport
        self._protocol: asyncio.Protocol | None = protocol
        """None once closed, to break the reference cycle with the protocol."""
        self._on_closed = on_closed
        self._is_awaited = False
        """Whether the kernel is asked to report input."""
        self._is_paused = False
        self._is_ours = False
        self._is_closed = False

    def take_over(self) -> None:
        """Starts reading here instead of in the event loop."""
        if not (self._is_closed or self._transport.is_closing()):
            self._transport.pause_reading()
            self._is_ours = True
            self._await()

    def pause_reading(self) -> None:
        """Leaves further input in the kernel."""
        self._is_paused = True
        self._await()

    def resume_reading(self) -> None:
        """Undoes `pause_reading`."""
        self._is_paused = False
        self._await()

    def close(self) -> None:
        """Ends reading. Call when the connection is lost: the system reuses the descriptor."""
        if not self._is_closed:
            self._is_closed = True
            self._protocol = None
            self._await()
            self._on_closed(self)

    def read(self) -> None:
        """Passes some input, or the end of input, to the protocol."""
        if self._transport.is_closing():
            self._stop()
        protocol = self._protocol
        if not self._is_awaited or protocol is None:
            return
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._transport.abort()
            return
        try:
            if data:
                protocol.data_received(data)
            else:
                self._stop()
                if not protocol.eof_received():
                    self._transport.close()
        except Exception:
            self._transport.abort()
            raise

    def _stop(self) -> None:
        """Ends reading of a connection that is only written to from now on."""
        self._is_ours = False
        self._await()

    def _await(self) -> None:
        """Registers with the kernel, or unregisters, where the wish to read has changed."""
        wanted = self._is_ours and not (self._is_paused or self._is_closed)
        if wanted == self._is_awaited:
            return
        self._is_awaited = wanted
        if wanted:
            self._epoll.register(self.descriptor, select.EPOLLIN)
        else:
            self._epoll.unregister(self.descriptor)


MAX_AHEAD = 100
"""Requests ahead on one connection. A connection with more ends after the answers to earlier requests."""
MAX_AHEAD_BYTES = 16 * 2**20
"""Bytes of requests ahead on all connections. A connection that exceeds the total ends."""
REQUEST_BYTES = 4096
"""Bytes that a parsed request takes in memory besides the body."""


class Ahead:
    """Requests ahead on all connections of a server. Each connection reports changes of its requests."""

    def __init__(self) -> None:
        self._by_connection: dict[object, int] = {}
        self.num_bytes = 0
        """Of all."""

    @property
    def is_full(self) -> bool:
        """Whether no connection may add requests."""
        return self.num_bytes >= MAX_AHEAD_BYTES

    def tell(self, connection: object, bodies: Iterable[Sized]) -> None:
        """`bodies`: received parts of the bodies of the requests that wait on this connection now."""
        now = sum(REQUEST_BYTES + len(body) for body in bodies)
        self.num_bytes += now - self._by_connection.pop(connection, 0)
        if now:
            self._by_connection[connection] = now
