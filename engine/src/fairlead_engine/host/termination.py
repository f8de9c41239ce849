"""A serving process's address and end: signals, and the reason of a failed start or fatal error for the kubelet."""

import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from fairlead_common.http.connections import listening_socket
from fairlead_engine.errors import AddressUnavailable, EngineError

VARIABLE = "FAIRLEAD_TERMINATION_LOG"
"""Environment variable with the termination log's path, if not `DEFAULT_PATH`."""
DEFAULT_PATH = Path("/dev/termination-log")


def serve_at(host: str, port: int, serve: Callable[[socket.socket], Coroutine[Any, Any, None]]) -> None:
    """Runs `serve` on a listening socket. Raises AddressUnavailable."""
    try:
        listener = listening_socket(host, port)
    except OSError as error:
        remedy = "stop what holds the address, or choose another --port or --host"
        raise AddressUnavailable(f"{error.strerror}; {remedy}") from error
    with listener:
        uvloop.run(serve(listener))
        for number in (signal.SIGINT, signal.SIGTERM):  # a repeated signal must not change the exit status
            signal.signal(number, signal.SIG_IGN)


def report(error: EngineError) -> None:
    """Writes `{"reason", "message"}` to the termination log, if it exists, and to stderr."""
    # Bytes of a command line outside of UTF-8 are lone surrogates, which JSON cannot hold.
    words = {name: value.encode(errors="backslashreplace").decode() for name, value in error.to_dict().items()}
    text = msgspec.json.encode(words).decode()
    print(text, file=sys.stderr, flush=True)
    given = os.environ.get(VARIABLE)
    path = Path(given) if given else DEFAULT_PATH
    if not (given or path.exists()):
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        print(f"the termination log {path} cannot be written: {problem}", file=sys.stderr, flush=True)
