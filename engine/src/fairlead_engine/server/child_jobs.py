"""What a process that does jobs, and the one that has them done, write to each other; and the former's part.

`child_lane` is the other part. A message is pickled; what is large goes beside it as bytes, which nobody copies twice.
"""

import os
import pickle
import signal
import struct
import sys
from collections.abc import Callable
from typing import IO, Any

from fairlead_engine.child_process import be_killed_with, leave_signals_to_parent, resident_bytes

READY = b"ready\n"
_HEAD = struct.Struct("<QQ")
"""Bytes of a message, and of what goes beside it."""


def send(stream: IO[bytes], message: Any, beside: bytes = b"") -> None:
    body = pickle.dumps(message)
    stream.write(_HEAD.pack(len(body), len(beside)))
    stream.write(body)
    stream.write(beside)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[Any, bytes]:
    """A message, and what came beside it. Raises EOFError."""
    num_bytes, num_beside = _HEAD.unpack(read(stream, _HEAD.size))
    return pickle.loads(read(stream, num_bytes)), read(stream, num_beside)


def read(stream: IO[bytes], num_bytes: int) -> bytes:
    """So many. Raises EOFError."""
    found = stream.read(num_bytes)
    if len(found) < num_bytes:
        raise EOFError
    return found


class Jobs:
    """Of this process, whose parent is the first of its arguments."""

    def __init__(self) -> None:
        leave_signals_to_parent()
        be_killed_with(int(sys.argv[1]))
        self._jobs, self._answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # what a library prints is no answer

    def do(self, done: Callable[[Any, bytes], tuple[Any, bytes]], most_bytes: int) -> None:
        """Answers each with what `done` makes of it, until there are no more. `most_bytes`: of memory that may be left
        behind a job; a process that has more is used up."""
        self._answers.write(READY)
        self._answers.flush()
        while True:
            try:
                (job, cpu_seconds), beside = receive(self._jobs)
            except EOFError:
                return
            signal.setitimer(signal.ITIMER_PROF, cpu_seconds)  # its signal ends the process; 0 = no limit
            answer, with_it = done(job, beside)
            signal.setitimer(signal.ITIMER_PROF, 0)
            send(self._answers, (answer, resident_bytes() > most_bytes), with_it)
            del job, beside, answer, with_it
