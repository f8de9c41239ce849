"""The first process of the tree, which runs nothing of any program: all others are forked from it, or from those."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from fairlead_protocol.workers.branch import Branch, WorkerInterrupted
from fairlead_protocol.workers.limits import Limits

_MOST_BESIDE = 4
_MOST_SLOW = 2
"""Of the places for jobs that take long, for programs that are slow. Sound ones have the others to themselves."""
_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "FASTOKENS_BPE_THREADS": "1",
    "RUST_BACKTRACE": "0",
}
"""What libraries of programs read. Threads do not survive a fork. Rust locks itself up where there is no memory for the
backtrace of that very error."""
_MOST_LOADING = 1
"""Of all programs together, at a time: each takes a processor for some seconds and several times the memory of what it
is made of, if it is made so."""
_COMMAND = (sys.executable, "-P", "-m", "fairlead_protocol.workers.process")


class WorkerRoot:
    """Starts when it is first needed. Its thread must live as long as it does, or Linux ends it. Close it when done."""

    def __init__(self, modules: Sequence[str], most_beside: int = _MOST_BESIDE) -> None:
        """`modules`: those that programs are in; they are imported once, for all of them. `most_beside`: jobs of all
        programs together that take long at a time: each may take all the memory of its limits."""
        self._modules = modules
        self._process: subprocess.Popen[bytes] | None = None
        self._branch: Branch | None = None
        self._beside = asyncio.Semaphore(most_beside)
        self._slow = asyncio.Semaphore(_MOST_SLOW)
        self.loading = asyncio.Semaphore(_MOST_LOADING)

    async def fork(self, limits: Limits) -> Branch:
        """A process for one program. Raises WorkerInterrupted where that could not be had."""
        return await self.start().fork(limits)

    @asynccontextmanager
    async def place(self, *, is_slow: bool, patience: float | None) -> AsyncIterator[None]:
        """For a job that takes long. Raises WorkerInterrupted where none is free within `patience` seconds; None = it
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
        """Before a process is wanted, as it takes some tenths of a second to import what programs need."""
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
        """Ends it, and all that were forked from it."""
        branch, process = self._branch, self._process
        self._branch = self._process = None
        if branch is not None:
            branch.end()
        if process is not None:
            process.kill()
            process.wait()
