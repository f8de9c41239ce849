"""Takes clients' connections and shares them out among the HTTP processes of one engine.

Only where there are several: a server alone accepts its connections itself. The system could share them out, too
(SO_REUSEPORT), by chance; and what waits at a process that stops would be lost.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

log = logging.getLogger(__name__)

_AT_ONCE = 32
"""Connections accepted in one round of the event loop."""
_PAUSE_SECONDS = 1.0
"""After the system refuses one for want of descriptors or memory."""
_WANT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class HttpProcess(Protocol):
    """A process that serves connections."""

    @property
    def room(self) -> int:
        """Connections that it may take beside those it has; it is given more only where all are full."""
        ...

    def take(self, connection: socket.socket) -> bool:
        """Serves a connection; False where it cannot."""
        ...


class Here:
    """This process, as such a place."""

    def __init__(
        self,
        max_connections: int,
        adopt: Callable[[socket.socket], "asyncio.Task[bool]"],
        on_closed: Callable[[], object] = lambda: None,
    ) -> None:
        """`adopt`: see `HttpServer`, which has to tell `closed` of each connection's end. `on_closed` is told, too."""
        self.num_closed = 0
        self._num_taken = 0
        self._max_connections = max_connections
        self._adopt = adopt
        self._on_closed = on_closed

    @property
    def room(self) -> int:
        return self._max_connections - (self._num_taken - self.num_closed)

    def take(self, connection: socket.socket) -> bool:
        self._num_taken += 1
        self._adopt(connection).add_done_callback(lambda adopted: None if adopted.result() else self.closed())
        return True

    def missed(self) -> None:
        """One that was given could not be taken, and is gone."""
        self._num_taken += 1
        self.closed()

    def closed(self) -> None:
        """One connection less."""
        self.num_closed += 1
        self._on_closed()


class Acceptor:
    """Gives each connection to the place that has the most room."""

    def __init__(self, listener: socket.socket, places: Callable[[], Sequence[HttpProcess]]) -> None:
        """`places`: those that serve now, at least one of which takes anything."""
        listener.setblocking(False)
        self._listener = listener
        self._places = places
        self._pause: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Begins to accept."""
        self._pause = None
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accepts nothing more; who still comes is refused by the system."""
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
