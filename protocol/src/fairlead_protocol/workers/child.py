"""What a process of ours does first when another of ours has started it."""

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def be_killed_with(parent_pid: int) -> None:
    """Has Linux kill this process when its parent is gone; elsewhere the end of its input has to do."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # it died before that call
            os._exit(1)


def leave_signals_to_parent() -> None:
    """Ctrl-C and a pod's SIGTERM may reach the whole process group; the parent decides when work ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def bury_descendants() -> None:
    """No process below this one stays behind as a zombie, whoever started it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def give_memory_back() -> None:
    """Returns what is free within the C library's heap to the system, where the library can."""
    with suppress(AttributeError):  # of musl and macOS
        ctypes.CDLL(None).malloc_trim(0)


def _prctl(option: int, argument: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, argument)
