"""Reads what clients send, and begins what they ask for, in a small share of each round of the event loop.

An event loop reads all connections on which something has come before it turns to anything else, so whoever sends on
thousands at once would hold up the tokens of everybody until all of it is parsed. Here data waits where that costs
nothing, in the kernel, and a few connections are read in each round, in the order in which they became readable.
Requests begin in order, too, some in each round.

Requests that came before the one in front of them was answered, on the same connection, wait parsed (`Ahead`). A
request of thirty bytes takes some thousands then, each part an object for the garbage collector to look at, so they are
bounded on each connection, and on all connections of a server together.
"""

import asyncio
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Sized

READ_BYTES = 16 * 1024
"""Of one connection at a time. So few can still be hundreds of tiny requests or thousands of tiny chunks of a body,
which take some milliseconds."""
READS_PER_ROUND = 16
"""Each may complete a request that takes a millisecond or two on the loop."""
SECONDS_PER_ROUND = 0.005
"""Reading goes on in the next round after this."""
BEGINNINGS_PER_ROUND = 8
"""Requests, of those that came and of those that waited for an answer on their connection to be whole."""


class Intake:
    """Of one server, whose connections share it. Belongs to the loop on which they are opened."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._inlets: dict[int, Inlet] = {}
        """By file descriptor."""
        self._ready: deque[int] = deque()
        """Those whose turn it is."""
        self._beginnings: deque[Callable[[], object]] = deque()
        self._is_reading = False
        self._begins_later = False
        """A round that begins some of them is on its way."""

    def open(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> "Inlet":
        """Takes over from the event loop: from the next round on it does not read this connection itself."""
        loop = asyncio.get_running_loop()
        if not self._inlets:
            loop.add_reader(self._epoll.fileno(), self._read)
        inlet = Inlet(self._epoll, transport, protocol, self._closed)
        self._inlets[inlet.descriptor] = inlet
        loop.call_soon(inlet.take_over)  # a loop begins to read when it has told of the connection, not before
        return inlet

    def begin(self, beginning: Callable[[], object]) -> None:
        """Calls `beginning` in its turn, which may be in this round."""
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
    """What comes in on one connection. Reading it is paused and resumed here instead of at its transport."""

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
        """None once it is closed: it knows us, too, and only the garbage collector would find the two."""
        self._on_closed = on_closed
        self._is_awaited = False
        """It is read when something has come."""
        self._is_paused = False
        self._is_ours = False
        self._is_closed = False

    def take_over(self) -> None:
        """From now on it is read here."""
        if not (self._is_closed or self._transport.is_closing()):
            self._transport.pause_reading()
            self._is_ours = True
            self._await()

    def pause_reading(self) -> None:
        """What comes stays where it is."""
        self._is_paused = True
        self._await()

    def resume_reading(self) -> None:
        """Undoes `pause_reading`."""
        self._is_paused = False
        self._await()

    def close(self) -> None:
        """Nothing more is read. To be called when the connection is lost: its descriptor is going to be another's."""
        if not self._is_closed:
            self._is_closed = True
            self._protocol = None
            self._await()
            self._on_closed(self)

    def read(self) -> None:
        """Hands on a part of what has come, or that no more is going to come."""
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
        """A connection that is only written to any more."""
        self._is_ours = False
        self._await()

    def _await(self) -> None:
        """Tells the kernel when there is a change in whether something is to be read."""
        wanted = self._is_ours and not (self._is_paused or self._is_closed)
        if wanted == self._is_awaited:
            return
        self._is_awaited = wanted
        if wanted:
            self._epoll.register(self.descriptor, select.EPOLLIN)
        else:
            self._epoll.unregister(self.descriptor)


MAX_AHEAD = 100
"""Of one connection, which ends after those before where there are more."""
MAX_AHEAD_BYTES = 16 * 2**20
"""Of all connections; the one on which more come ends."""
REQUEST_BYTES = 4096
"""What a request takes beside its body."""


class Ahead:
    """Of one server, whose connections tell it what waits on them whenever that may have changed."""

    def __init__(self) -> None:
        self._by_connection: dict[object, int] = {}
        self.num_bytes = 0
        """Of all."""

    @property
    def is_full(self) -> bool:
        """Whether no connection may have more of them."""
        return self.num_bytes >= MAX_AHEAD_BYTES

    def tell(self, connection: object, bodies: Iterable[Sized]) -> None:
        """`bodies`: as far as they have come, of the requests that wait on this connection now."""
        now = sum(REQUEST_BYTES + len(body) for body in bodies)
        self.num_bytes += now - self._by_connection.pop(connection, 0)
        if now:
            self._by_connection[connection] = now
