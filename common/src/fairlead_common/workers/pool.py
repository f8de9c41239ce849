"""All processes of one program: a stem that has loaded the program, a process for short jobs, and some for long jobs.

Short jobs share one process with warm caches. A job that exceeds a slice ends the shared process, which is replaced at
once, and starts again in a separate process, so that no job waits behind a long job. A program with longer jobs than
sound programs gets fewer places and a lower priority; after repeated excesses of limits a program is given up for a
while.
"""

import asyncio
import logging
from contextlib import suppress

import msgspec

from fairlead_common.workers.branch import Branch, WorkerExceeded, WorkerInterrupted
from fairlead_common.workers.limits import WorkerLimits, cpu_seconds
from fairlead_common.workers.process import FrameKind, LoadFrame
from fairlead_common.workers.root import WorkerRoot

logger = logging.getLogger(__name__)

LARGE_BYTES = 256 * 1024
"""Jobs from this size on run one by one: each takes about a second."""
_NUM_BESIDE = 2
"""Processes for jobs that take longer than a slice and are smaller."""
_NICENESS = 5
"""Of processes for long jobs: short jobs go first."""
_MOST_INTERRUPTIONS = 8
MOST_EXCESSES = 3
_EXCESS_SECONDS = 300.0
"""After which an excess counts no more."""
PAUSE_SECONDS = 60.0
"""For which a program is given up; twice as long each time."""
_MOST_PAUSE_SECONDS = 3600.0


class GivenUp(Exception):
    """The program is not run; the text says why."""


class WorkersClosed(GivenUp):
    """The owner of the program ends."""


class Workers:
    """The processes of one program. Close when done."""

    def __init__(
        self,
        root: WorkerRoot,
        name: str,
        program: str,
        payload: bytes,
        limits: WorkerLimits | None = None,
        *,
        plain_program: str | None = None,
        num_bytes: int = 0,
        gives_up: bool = True,
        patience: float | None = None,
    ) -> None:
        """`name`: for people. `program`: the `process.Program` that loads `payload`, as `module:name`.
        `plain_program`: an alternative for the same jobs, loaded where `program` exceeds its limits. `num_bytes`: of
        the files read while loading. `gives_up`: whether the program gets fewer places when jobs take long, and is
        given up after repeated excesses. `patience`: seconds that a long job waits for a place before the job counts
        as interrupted; None = no limit."""
        self.name = name
        self._root = root
        self._load = msgspec.msgpack.encode(LoadFrame(program, payload))
        plain = None if plain_program is None else msgspec.msgpack.encode(LoadFrame(plain_program, payload))
        self._plain_load = plain
        self._limits = limits or WorkerLimits()
        self._num_bytes = num_bytes
        self._gives_up = gives_up
        self._patience = patience
        self._is_slow = False
        self._loop = asyncio.get_running_loop()
        self._stem: Branch | None = None
        self._quick: Branch | None = None
        self._alone: set[Branch] = set()
        self._starting: asyncio.Task[Branch] | None = None
        self._loading: asyncio.Task[bytes] | None = None
        self._beside = asyncio.Semaphore(_NUM_BESIDE)
        self._large = asyncio.Semaphore(1)
        self._excesses: list[float] = []
        """Times of recent excesses of a limit."""
        self._pause_seconds = PAUSE_SECONDS
        self._paused_until = 0.0
        self._problem = ""
        self._is_closed = False

    @property
    def problem(self) -> str | None:
        """Why the program is given up at present; None = the program runs."""
        return self._problem if self._loop.time() < self._paused_until else None

    async def load(self) -> bytes:
        """Loads the program; returns its description. Raises WorkerError, WorkerExceeded, or WorkerInterrupted."""
        num_bytes = self._num_bytes + len(self._load)
        async with self._root.loading:
            try:
                return await self._load_now(num_bytes)
            except WorkerExceeded:
                if self._plain_load is None:
                    raise
            self._load, self._plain_load = self._plain_load, None
            return await self._load_now(num_bytes)

    async def _load_now(self, num_bytes: int) -> bytes:
        limits = self._limits
        stem = await self._root.fork(msgspec.structs.replace(limits, memory_bytes=limits.memory_to_load(num_bytes)))
        try:
            seconds = limits.seconds_to_load(num_bytes, is_trial=self._plain_load is not None)
            told = await stem.ask(FrameKind.LOAD, self._load, seconds)
            self._quick = await stem.fork(self._limits)  # before anybody waits for it
        except BaseException:
            stem.end()
            raise
        self._stem = stem
        return told

    async def loaded(self) -> None:
        """Returns when the program can be asked, loading it if necessary. Raises GivenUp, and the errors of `load`."""
        self._check()
        if self._stem is None or self._stem.has_ended:
            await asyncio.shield(self._loaded_soon())

    async def ask(self, job: bytes) -> bytes:
        """The answer to a job that is probably short; a job that turns out long gets a process of its own. Raises
        GivenUp, WorkerError, WorkerExceeded, or, where no process is up, WorkerInterrupted."""
        try:
            return await self.ask_briefly(job)
        except WorkerExceeded:
            return await self.ask_beside(job)

    async def ask_briefly(self, job: bytes, seconds: float | None = None) -> bytes:
        """The answer to a job in the process for short jobs. `seconds`: of a processor, None = a slice; a longer job
        raises WorkerExceeded. Other errors are those of `ask`."""
        self._check()
        seconds = self._limits.slice(len(job)) if seconds is None else seconds
        for _ in range(_MOST_INTERRUPTIONS):
            quick = self._quick if self._quick and not self._quick.has_ended else await self._started()
            try:
                return await quick.ask(FrameKind.JOB, job, seconds)
            except WorkerInterrupted:
                continue
            except WorkerExceeded:
                quick.end()
                raise
        raise WorkerInterrupted

    async def ask_beside(self, job: bytes, num_bytes: int = 0, seconds: float | None = None) -> bytes:
        """The answer to a long job, from a process of its own. `num_bytes`: size of the input, if larger than the job.
        `seconds`: of a processor; None = by the limits. Raises the errors of `ask`."""
        num_bytes = max(num_bytes, len(job))
        seconds = self._limits.seconds(num_bytes) if seconds is None else seconds
        async with (
            self._large if num_bytes >= LARGE_BYTES else self._beside,
            self._root.place(is_slow=self._is_slow, patience=self._patience),
        ):
            self._check()
            branch = await self._stem_now().fork(self._limits, _NICENESS)
            self._alone.add(branch)
            try:
                answer = await branch.ask(FrameKind.LONG_JOB, job, seconds)
                with suppress(OSError):  # it may be gone
                    self._is_slow = self._gives_up and self._limits.is_slow(cpu_seconds(branch.pid), num_bytes)
                return answer
            except WorkerExceeded as error:
                self._note(error)
                raise
            finally:
                self._alone.discard(branch)
                branch.end()

    def close(self) -> None:
        """Ends all processes of the program; further jobs are refused."""
        self._is_closed = True
        for task in (self._starting, self._loading):
            if task is not None:
                task.cancel()
        for branch in (*self._alone, self._quick, self._stem):
            if branch is not None:
                branch.end()

    def _check(self) -> None:
        if self._is_closed:
            raise WorkersClosed("its owner ends")
        if (problem := self.problem) is not None:
            raise GivenUp(problem)

    def _note(self, error: WorkerExceeded) -> None:
        if not self._gives_up:
            return
        self._is_slow = True
        now = self._loop.time()
        self._excesses = [*(when for when in self._excesses if now - when < _EXCESS_SECONDS), now]
        if len(self._excesses) >= MOST_EXCESSES and self.problem is None:
            self._excesses.clear()
            self._problem = str(error)
            self._paused_until = now + self._pause_seconds
            logger.error("%s is given up for %g s: %s", self.name, self._pause_seconds, error)
            self._pause_seconds = min(2 * self._pause_seconds, _MOST_PAUSE_SECONDS)

    def _stem_now(self) -> Branch:
        """The stem. Where it has ended, starts loading another and raises WorkerInterrupted."""
        if self._stem is None or self._stem.has_ended:
            self._loaded_soon()
            raise WorkerInterrupted
        return self._stem

    def _loaded_soon(self) -> "asyncio.Task[bytes]":
        if self._loading is None or self._loading.done():
            self._loading = self._loop.create_task(self.load())
            self._loading.add_done_callback(_seen)
        return self._loading

    async def _started(self) -> Branch:
        if self._starting is None:
            niceness = _NICENESS if self._is_slow else 0
            self._starting = self._loop.create_task(self._stem_now().fork(self._limits, niceness))
            self._starting.add_done_callback(self._has_started)
        return await asyncio.shield(self._starting)

    def _has_started(self, task: "asyncio.Task[Branch]") -> None:
        self._starting = None
        if not task.cancelled() and task.exception() is None:
            self._quick = task.result()


def _seen(task: "asyncio.Task[bytes]") -> None:
    if not task.cancelled():
        task.exception()
