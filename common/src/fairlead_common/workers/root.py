"""The first process of the tree, which runs no program: all other processes descend from it by fork."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from fairlead_common.workers.branch import Branch, WorkerInterrupted
from fairlead_common.workers.limits import WorkerLimits

_MOST_BESIDE = 4
_MOST_SLOW = 2
"""Places for long jobs of slow programs. Sound programs have the remaining places to themselves."""
_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "FASTOKENS_BPE_THREADS": "1",
    "RUST_BACKTRACE": "0",
}
"""Settings of libraries in programs. Threads do not survive a fork, and Rust deadlocks where memory runs out during the
backtrace of a memory error."""
_MOST_LOADING = 1
"""Programs loading at a time: a load may take a processor for some seconds and several times the size of the input in
memory."""
_COMMAND = (sys.executable, "-P", "-m", "fairlead_common.workers.process")


class WorkerRoot:
    """Starts on first use. The thread that starts it must outlive it, or Linux ends the process. Close when done."""

    def __init__(self, modules: Sequence[str], most_beside: int = _MOST_BESIDE) -> None:
        """`modules`: modules of programs, imported once for all. `most_beside`: long jobs of all programs at a time;
        each may take all the memory of its limits."""
        self._modules = modules
        self._process: subprocess.Popen[bytes] | None = None
        self._branch: Branch | None = None
        self._beside = asyncio.Semaphore(most_beside)
        self._slow = asyncio.Semaphore(_MOST_SLOW)
        self.loading = asyncio.Semaphore(_MOST_LOADING)

    async def fork(self, limits: WorkerLimits) -> Branch:
        """A process for one program. Raises WorkerInterrupted where none could be forked."""
        return await self.start().fork(limits)

    @asynccontextmanager
    async def place(self, *, is_slow: bool, patience: float | None) -> AsyncIterator[None]:
        """A place for a long job. Raises WorkerInterrupted where no place is free within `patience` seconds; None =
        waits."""
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(patience):
                    if is_slow:
                        await held.enter_async_context(self._slow)
                    await held.enter_async_context(self._beside)
            except TimeoutError:
                raise WorkerInterrupted from None
            yield

    def start(self) -> Branch:
        """Starts the root, best before first use: importing the modules takes some tenths of a second."""
        if self._branch is None or self._branch.has_ended:
            self.close()
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [*_COMMAND, str(os.getpid()), *self._modules],
                    stdin=theirs.fileno(),
                    env={**os.environ, **_ENVIRONMENT},
                )
            self._branch = Branch(ours)
        return self._branch

    def close(self) -> None:
        """Ends the root and all descendants."""
        branch, process = self._branch, self._process
        self._branch = self._process = None
        if branch is not None:
            branch.end()
        if process is not None:
            process.kill()
            process.wait()
