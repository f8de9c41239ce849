"""Jobs that strangers' input could make endless, done in a process that can be ended: when a job takes too long, when
nobody waits for it any more, and when the server ends.

What the job is, and what its failure means, is its caller's business. Called from the event loop.
"""

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any, cast

from fairlead_engine.child_process import described_end
from fairlead_engine.server.child_jobs import READY, read, receive, send

Child = subprocess.Popen[bytes]

_PIPE_BYTES = 2**20
"""Of a pipe, where the system lets it grow: both ends are woken less often."""


class ChildFailure(Exception):
    """A job was not done."""


class TookTooLong(ChildFailure):
    """Its process was ended for that."""


class ChildEnded(ChildFailure):
    """Its process ended by itself; the message says how."""


class ChildLane:
    """A process that does one job after the other, and the thread that talks to it. It starts when the first job comes,
    or before. Close it when done."""

    def __init__(self, module: str) -> None:
        """`module`: the program, which has `Jobs`."""
        self._module = module
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, module.rpartition(".")[2])
        self._process: Child | None = None

    def start(self) -> None:
        """Starts the process before the first job comes."""
        self._thread.submit(self._started)

    async def done(
        self, job: Any, beside: bytes = b"", *, timeout_seconds: float, cpu_seconds: float = 0.0
    ) -> tuple[Any, bytes]:
        """The answer, and what came beside it. `cpu_seconds`: of the process, that the job may take; 0 = no limit.
        Raises ChildFailure. Whoever is cancelled ends what was done for it."""
        run = asyncio.get_running_loop().run_in_executor
        async with self._turn:
            try:
                process = await run(self._thread, self._started)
                asked = run(self._thread, _asked, process, (job, cpu_seconds), beside)
                (answer, is_spent), with_it = await asyncio.wait_for(asked, timeout_seconds)
            except TimeoutError:
                self.end()
                raise TookTooLong from None
            except BaseException:
                self.end()
                raise
            if is_spent:
                self.end()
        return answer, with_it

    def _started(self) -> Child:
        """Raises ChildEnded."""
        process = self._process
        if process is not None and process.poll() is not None:
            _buried(process)
            process = None
        if process is None:
            command = [sys.executable, "-m", self._module, str(os.getpid())]
            process = self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for pipe in (process.stdin, process.stdout):
                _widen(cast("IO[bytes]", pipe))
            try:
                read(cast("IO[bytes]", process.stdout), len(READY))
            except EOFError:
                raise _ended(process) from None
        return process

    def end(self) -> None:
        """Ends the process; the next job starts another one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._thread.submit(_buried, process)

    def close(self) -> None:
        self.end()
        self._thread.submit(self._end_late)
        self._thread.shutdown()

    def _end_late(self) -> None:
        """What was about to start when the lane was closed."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            _buried(process)


def _asked(process: Child, job: Any, beside: bytes) -> tuple[Any, bytes]:
    """Raises ChildFailure."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        send(process.stdin, job, beside)
        return receive(process.stdout)
    except (OSError, EOFError):
        raise _ended(process) from None


def _ended(process: Child) -> ChildFailure:
    process.kill()  # it may only have closed its pipes
    status = process.wait()
    return TookTooLong() if status == -signal.SIGPROF else ChildEnded(described_end(status))


def _buried(process: Child) -> None:
    """Its pipes are closed and its number given back, once it has been killed."""
    with suppress(OSError):
        process.communicate()


def _widen(pipe: IO[bytes]) -> None:
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):  # whoever has many pipes may not
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
