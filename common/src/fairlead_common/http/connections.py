"""Connections: the listening socket, file descriptors for as many clients as are allowed, timers, and a count and a
log line for each connection that is cut without an answer."""

import asyncio
import errno
import logging
import resource
import socket
import time
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVarTuple, Unpack

from fairlead_common.logs import LineBudget

logger = logging.getLogger(__name__)

SPARE = 256
"""Descriptors for listening, streams of engines and the API, idle connections to replicas, files and pipes."""
LINES_AT_ONCE = 20
LINES_PER_SECOND = 1.0
"""Log lines about cut connections: anybody who reaches the port may open any number. Metrics count all cuts."""


class CutReason(StrEnum):
    """Why a connection was ended without an answer."""

    TOO_MANY = "too-many-connections"
    """There are far more than are taken at once."""
    SLOW_HEAD = "slow-headers"
    """No request came, or not all of its headers, in time."""
    UNWANTED_BODY = "unwanted-body"
    """Its request is answered, and its body does not end."""
    UNREAD_ANSWER = "unread-answer"
    """Its client does not read what it is sent."""


class CutConnections:
    """Counts those that are cut, and tells of as many as may have a line."""

    def __init__(self, count: Callable[[CutReason], object]) -> None:
        self._count = count
        self._lines = LineBudget(burst=LINES_AT_ONCE, per_second=LINES_PER_SECOND)

    def cut(self, reason: CutReason) -> None:
        """A connection is being ended."""
        self._count(reason)
        if (num_left_out := self._lines.take(time.monotonic())) is not None:
            logger.warning("connection cut", extra={"reason": reason, "num_left_out": num_left_out or None})


def listening_socket(host: str, port: int, *, backlog: int = 128) -> socket.socket:
    """A TCP socket that listens on a name or an address. Raises OSError with a sentence that names both."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(found[4][:2], family=found[0], backlog=backlog)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    except UnicodeError as error:  # no DNS name at all
        raise OSError(errno.EINVAL, f"cannot listen on {host}:{port}: {error}") from error


def allow_descriptors(num_connections: int, *, per_connection: int) -> None:
    """Raises the limit of open files of the process to the need of `num_connections` clients, as far as allowed; logs a
    warning where the limit stays too low. `per_connection`: descriptors for one client."""
    needed = num_connections * per_connection + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (ValueError, OSError) as error:
            logger.info("the limit of open files stays at %d: %s", soft, error)
    if soft != resource.RLIM_INFINITY and soft < needed:
        enough_for = max(0, soft - SPARE) // per_connection
        logger.warning("%d open files are enough for %d connections, not for --max-connections", soft, enough_for)


Arguments = TypeVarTuple("Arguments")


class StallTimer:
    """Calls `on_stall` once when a wait between `begin` and `end` lasts longer than `limit` seconds.

    `begin` and `end` only note the time, which one timer of the loop checks now and then. An `asyncio.timeout` around
    every chunk would cost more than forwarding the chunk.
    """

    __slots__ = ("_handle", "_loop", "_on_stall", "_since", "limit")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float, on_stall: Callable[[], object]) -> None:
        self.limit = limit
        self._loop = loop
        self._on_stall: Callable[[], object] | None = on_stall
        self._since: float | None = None
        self._handle: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Waiting starts now."""
        self._since = self._loop.time()
        if self._handle is None:
            self._handle = self._loop.call_later(self.limit, self._look)

    def end(self) -> None:
        """What was awaited has come."""
        self._since = None

    def restart(self, limit: float) -> None:
        """Sets another limit; ends the present wait."""
        self._since = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self.limit = limit

    def close(self) -> None:
        """Ends the timer and drops the callback, to break the reference cycle with its owner."""
        self.restart(self.limit)
        self._on_stall = None

    def _look(self) -> None:
        self._handle = None
        if self._since is None or self._on_stall is None:
            return
        remaining = self._since + self.limit - self._loop.time()
        if remaining <= 0:
            self._since = None
            self._on_stall()
        else:
            self._handle = self._loop.call_later(remaining, self._look)


class Countdown:
    """Calls something once, unless it is stopped, or started anew, before."""

    __slots__ = ("_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        """Whether it was started and not stopped; also after the call."""
        return self._handle is not None

    def start(self, seconds: float, call: Callable[[Unpack[Arguments]], object], *args: *Arguments) -> None:
        """Calls `call` after so many seconds."""
        self.stop()
        self._handle = self._loop.call_later(seconds, call, *args)

    def stop(self) -> None:
        """No call."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
