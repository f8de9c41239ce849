"""Clients' connections: where they come in, as many file descriptors as they need, and a count and a log line for each
that is cut without an answer."""

import errno
import logging
import resource
import socket
import time
from collections.abc import Callable
from enum import StrEnum

from fairlead_protocol.line_budget import LineBudget

logger = logging.getLogger(__name__)

SPARE = 256
"""For listening, following engines and the API, idle connections to replicas, files and pipes."""
LINES_AT_ONCE = 20
LINES_PER_SECOND = 1.0
"""About connections that were cut: whoever reaches the port may open any number. Metrics count them all."""


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
    """Raises the process's limit to what `num_connections` clients may need, as far as it is allowed to; says so where
    that is not far enough. `per_connection`: the client's own, and what else is opened for it."""
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
