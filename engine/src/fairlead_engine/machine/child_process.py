"""A child process of the engine: orders from the parent, and a common end.

The parent writes a line to standard input and keeps the pipe open.
"""

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio.subprocess import Process

from fairlead_common.workers.process import be_killed_with as be_killed_with
from fairlead_common.workers.process import leave_signals_to_parent as leave_signals_to_parent

_STDIN = 0


def give_orders(child: "Process", orders: bytes) -> None:
    """The parent's part. The parent notices a dead child elsewhere."""
    assert child.stdin is not None
    if not child.stdin.is_closing():
        child.stdin.write(orders + b"\n")


def read_orders() -> bytes:
    """One line of standard input, without Python's buffer, which is not safe for threads at exit."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(_STDIN, 65536)
        if not chunk:
            raise SystemExit("this process is started by the engine server; run `fairlead-engine serve` instead")
        line += chunk
    return line


def die_with(parent_pid: int) -> None:
    """Ends this process with its parent: on Linux even within a long step, elsewhere by a thread, after the step."""

    def end_with_input() -> None:
        while os.read(_STDIN, 4096):
            pass
        os._exit(1)

    threading.Thread(target=end_with_input, name="lifeline", daemon=True).start()
    be_killed_with(parent_pid)


def described_end(status: int) -> str:
    """A child's end in words."""
    if status >= 0:
        return f"it ended with status {status}"
    hint = "; if nobody did that, its container is short of memory" if -status == signal.SIGKILL else ""
    return f"it was ended by signal {-status} ({signal.strsignal(-status)}){hint}"


def resident_bytes() -> int:
    """Of this process; 0 where nobody says."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
