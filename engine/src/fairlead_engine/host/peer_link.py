"""The link between the HTTP processes of one engine: messages on one Unix socket, open connections on another, and how
connections are shared out.

The first process has started the peers. The system could share connections out by chance (SO_REUSEPORT); connections
waiting at a process that stops would then be lost.
"""

import asyncio
import errno
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from fairlead_engine.config import EngineConfig, ServerConfig

Incoming = TypeVar("Incoming")

_MAX_LINE = 2**20
_CONNECTIONS_AT_ONCE = 32
"""Connections taken in one round of the event loop: setting up each delays tokens by a tenth of a millisecond."""


class PeerOrders(msgspec.Struct, frozen=True):
    """A peer's start-up orders: one line on standard input."""

    parent_pid: int
    place: int
    """Among the HTTP processes of this engine; the first has 0."""
    num_places: int
    folder: str
    core_address: str
    messages_fd: int
    connections_fd: int
    engine: EngineConfig
    server: ServerConfig
    """With this process's share of bounds on all processes together."""


# -- from the first process to a peer; the end of the line ends it -----------------------------------------------------


class Serve(msgspec.Struct, frozen=True, tag=True):
    """All processes are loaded: requests will come."""

    created: int
    """When the model was loaded, for clients; Unix time."""


class DrainPeer(msgspec.Struct, frozen=True, tag=True):
    """Finish what runs."""

    grace_seconds: float
    timeout_seconds: float


class Hurry(msgspec.Struct, frozen=True, tag=True):
    """End the drain now."""


class CoreLost(msgspec.Struct, frozen=True, tag=True):
    """The core is gone."""

    message: str


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Send `PeerFigures`."""


ToPeer = Serve | DrainPeer | Hurry | CoreLost | Ask


# -- from a peer to the first process ----------------------------------------------------------------------------------


class PeerLoaded(msgspec.Struct, frozen=True, tag=True):
    """The peer's files are read, and the core has answered."""


class NotLoaded(msgspec.Struct, frozen=True, tag=True):
    """The peer cannot start (`StartError.to_dict`), and ends."""

    reason: str
    message: str


class Closed(msgspec.Struct, frozen=True, tag=True):
    """Number of given connections that are closed."""

    num_connections: int


class Seen(msgspec.Struct, frozen=True, tag=True):
    """Loads from this report of the core on include a gateway's requests up to this number."""

    gateway: str
    number: int
    report: int


class MalformedDispatch(msgspec.Struct, frozen=True, tag=True):
    """A request's dispatch header could not be read."""


class Drained(msgspec.Struct, frozen=True, tag=True):
    """Nothing runs any more, and nothing is taken."""


class MetricSample(msgspec.Struct, frozen=True, array_like=True):
    """One number of the metrics."""

    family: str
    name: str
    labels: dict[str, str]
    value: float
    is_of_now: bool
    """Whether the sample means nothing after its process's end; False = a counter."""


class PeerFigures(msgspec.Struct, frozen=True, tag=True):
    """The peer's counts since its start."""

    num_running: int
    samples: list[MetricSample]
    awaited_seconds: float = 0.0
    """How long the core has owed the peer an answer."""


FromPeer = PeerLoaded | NotLoaded | Closed | Seen | MalformedDispatch | Drained | PeerFigures


class Line(Generic[Incoming]):
    """One end of a line of messages, one JSON object each."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, incoming: object) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder: msgspec.json.Decoder[Incoming] = msgspec.json.Decoder(incoming)

    @classmethod
    async def over(cls, end: socket.socket, incoming: object) -> "Line[Incoming]":
        """Over one end of a socket pair. `incoming`: the type of received messages."""
        reader, writer = await asyncio.open_unix_connection(sock=end, limit=_MAX_LINE)
        return cls(reader, writer, incoming)

    def send(self, message: msgspec.Struct) -> None:
        """Sends without waiting; to an end that is gone, nothing."""
        if not self._writer.is_closing():
            self._writer.write(msgspec.json.encode(message) + b"\n")

    async def receive(self) -> Incoming | None:
        """The next message; None at the end of the line, also after an error."""
        try:
            text = await self._reader.readline()
        except ConnectionError:
            return None
        return self._decoder.decode(text) if text.endswith(b"\n") else None

    def close(self) -> None:
        """Ends the line behind what was sent."""
        self._writer.close()


class Passage:
    """One end of a socket over which open connections move to the other process."""

    def __init__(
        self,
        end: socket.socket,
        take: Callable[[socket.socket], object],
        missed: Callable[[], object] = lambda: None,
    ) -> None:
        """`take` gets each arriving connection; `missed` is told of each connection lost for lack of descriptors."""
        end.setblocking(False)
        self._end = end
        self._take = take
        self._missed = missed

    def open(self) -> None:
        """Begins to take connections, which have waited in the passage."""
        asyncio.get_running_loop().add_reader(self._end, self._receive)

    def give(self, connection: socket.socket) -> bool:
        """Gives the other process a connection, to be closed here afterwards; False after a failure."""
        try:
            socket.send_fds(self._end, [b"\0"], [connection.fileno()])
        except OSError:  # the passage is full, or the other end is gone
            return False
        return True

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._end)
        self._end.close()

    def _receive(self) -> None:
        for _ in range(_CONNECTIONS_AT_ONCE):
            try:
                said, descriptors, _, _ = socket.recv_fds(self._end, 1, 1)
            except BlockingIOError:
                return
            except OSError:
                said, descriptors = b"", []
            for descriptor in descriptors:
                self._take(socket.socket(fileno=descriptor))
            if said and not descriptors:
                self._missed()
            if not said:  # the other end is gone
                asyncio.get_running_loop().remove_reader(self._end)
                return


log = logging.getLogger(__name__)

_AT_ONCE = 32
"""Connections accepted in one round of the event loop."""
_PAUSE_SECONDS = 1.0
"""Pause after the system has no descriptors or memory for a connection."""
_WANT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class HttpProcess(ABC):
    """A process that serves connections."""

    def __init__(self, max_connections: int = 0) -> None:
        self.max_connections = max_connections
        self.num_taken = self.num_closed = 0

    @property
    def room(self) -> int:
        """Number of further connections; a process without room gets a connection only if all are full."""
        return self.max_connections - (self.num_taken - self.num_closed)

    @abstractmethod
    def take(self, connection: socket.socket) -> bool:
        """Serves a connection; False where that fails."""


class Here(HttpProcess):
    def __init__(
        self,
        max_connections: int,
        adopt: Callable[[socket.socket], "asyncio.Task[bool]"],
        on_closed: Callable[[], object] = lambda: None,
    ) -> None:
        """`adopt`: as `HttpServer.adopt`. The server calls `closed` at each connection's end, and `closed` calls
        `on_closed`."""
        super().__init__(max_connections)
        self._adopt = adopt
        self._on_closed = on_closed

    def take(self, connection: socket.socket) -> bool:
        self.num_taken += 1
        self._adopt(connection).add_done_callback(lambda adopted: None if adopted.result() else self.closed())
        return True

    def missed(self) -> None:
        """A connection was lost before it could be taken."""
        self.num_taken += 1
        self.closed()

    def closed(self) -> None:
        self.num_closed += 1
        self._on_closed()


class Acceptor:
    """Gives each connection to the process with the most room."""

    def __init__(self, listener: socket.socket, places: Callable[[], Sequence[HttpProcess]]) -> None:
        """`places`: processes that serve now; at least one takes any connection."""
        listener.setblocking(False)
        self._listener = listener
        self._places = places
        self._pause: asyncio.TimerHandle | None = None

    def open(self) -> None:
        self._pause = None
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accepts nothing more; the system refuses later connections."""
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _WANT:
                    raise
                log.warning("no connection can be accepted: %s", error.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener)
                self._pause = loop.call_later(_PAUSE_SECONDS, self.open)
                return
            for place in sorted(self._places(), key=lambda each: -each.room):
                if place.take(connection):
                    break
