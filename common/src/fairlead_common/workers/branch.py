"""One process of the tree, seen by the owner: jobs go in, answers come in turn, and excesses end the process."""

import asyncio
import os
import signal
import socket
from collections import deque
from contextlib import suppress
from typing import NamedTuple

import msgspec

from fairlead_common.workers.limits import WorkerLimits, cpu_seconds
from fairlead_common.workers.process import ForkFrame, FrameKind, FrameReader, framed

_LOOK_SECONDS = 0.02
"""Between two looks at the clock of a process that is at work."""
_PATIENCE_SECONDS = 120.0
"""By the clock on the wall; for a process that does nothing any more."""
_READ_BYTES = 256 * 1024
_MOST_READ_BYTES = 2**20
"""Most bytes read at a time, where so many are announced; also the buffer of a channel, where the system allows."""


class WorkerError(Exception):
    """The program raised something; the text is what it said."""


class WorkerExceeded(Exception):
    """The program exceeds a limit, named in the text. The process has ended or will end."""


class WorkerTooSlow(WorkerExceeded):
    """Of a processor's time."""


class WorkerInterrupted(Exception):
    """The process has ended, through no fault of this job."""


class _PendingJob(NamedTuple):
    answer: "asyncio.Future[bytes]"
    seconds: float
    """That the process may take for it."""


class Branch:
    """Made within a running loop. End it when done."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader()
        self._unsent = bytearray()
        self._num_sent = 0
        """Bytes of `_unsent` that were sent already."""
        self._writes = False
        """Whether the loop waits for room in the channel."""
        self._asked: deque[_PendingJob] = deque()
        self._since: tuple[float, float] | None = None
        """CPU clock of the process and wall clock when the first job in `_asked` was first seen running."""
        self._timer: asyncio.TimerHandle | None = None
        self._pid_fd: int | None = None
        self.pid = 0
        """0 until it is born."""
        self.born: asyncio.Future[None] = self._loop.create_future()
        self.has_ended = False
        self._loop.add_reader(channel.fileno(), self._read)

    @property
    def num_asked(self) -> int:
        """Jobs without an answer."""
        return len(self._asked)

    def ask(self, kind: FrameKind, body: bytes, seconds: float) -> "asyncio.Future[bytes]":
        """The answer to a job, or to LOAD, within `seconds` of a processor. Raises WorkerError, WorkerExceeded, or
        WorkerInterrupted."""
        answer: asyncio.Future[bytes] = self._loop.create_future()
        if self.has_ended:
            answer.set_exception(WorkerInterrupted())
            return answer
        is_idle = not self._asked
        self._asked.append(_PendingJob(answer, seconds))
        self._send(framed(kind, body), at_once=is_idle)
        self._watch()
        return answer

    async def fork(self, limits: WorkerLimits, niceness: int = 0) -> "Branch":
        """Another process with the same program loaded. Raises WorkerInterrupted where this process has ended."""
        ours, theirs = socket.socketpair()
        for channel in (ours, theirs):
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_READ_BYTES)
        frame = framed(FrameKind.FORK, msgspec.msgpack.encode(ForkFrame(limits, niceness)))
        child = Branch(ours)
        with theirs:
            try:
                socket.send_fds(self._channel, [frame], [theirs.fileno()])
            except OSError:
                child.end()
        try:
            await child.born
        except BaseException:
            child.end()
            raise
        return child

    def end(self, error: Exception | None = None) -> None:
        """Kills the process. The job in progress fails with `error`; jobs behind fail with WorkerInterrupted."""
        if self.has_ended:
            return
        self.has_ended = True
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        self._channel.close()
        if self._timer is not None:
            self._timer.cancel()
        with suppress(OSError):
            if self._pid_fd is not None:
                signal.pidfd_send_signal(self._pid_fd, signal.SIGKILL)
            elif self.pid:
                os.kill(self.pid, signal.SIGKILL)
        if self._pid_fd is not None:
            os.close(self._pid_fd)
        if not self.born.done():
            self.born.set_exception(WorkerInterrupted())
            self.born.exception()  # for which perhaps nobody waits
        while self._asked:
            answer = self._asked.popleft().answer
            if not answer.done():
                answer.set_exception(error or WorkerInterrupted())
            error = None

    def _send(self, data: bytes, *, at_once: bool) -> None:
        """Queues data. Behind other jobs, sends together with further data of this round of the loop."""
        if not self._unsent and not at_once:
            self._loop.call_soon(self._write)
        self._unsent += data
        if at_once:
            self._write()

    def _write(self) -> None:
        if self.has_ended:
            return
        try:
            with memoryview(self._unsent) as unsent, unsent[self._num_sent :] as rest:
                self._num_sent += self._channel.send(rest)
        except BlockingIOError:
            pass
        except OSError:
            self._num_sent = len(self._unsent)  # reading will find out
        if self._num_sent == len(self._unsent):
            self._unsent.clear()
            self._num_sent = 0
        if bool(self._unsent) != self._writes:
            self._writes = not self._writes
            if self._writes:
                self._loop.add_writer(self._channel.fileno(), self._write)
            else:
                self._loop.remove_writer(self._channel.fileno())

    def _read(self) -> None:
        try:
            data = self._channel.recv(max(_READ_BYTES, min(self._frames.num_missing, _MOST_READ_BYTES)))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.end(WorkerExceeded("its process died, as one that runs out of memory does"))
        for kind, body in self._frames.feed(data):
            self._take(kind, body)

    def _take(self, kind: FrameKind, body: bytes) -> None:
        if kind is FrameKind.BORN:
            self.pid = int.from_bytes(body, "little")
            with suppress(OSError, AttributeError):
                self._pid_fd = os.pidfd_open(self.pid)
            if not self.born.done():
                self.born.set_result(None)
            return
        self._since = None
        answer = self._asked.popleft().answer
        if answer.done():
            return  # nobody waits any more
        if kind is FrameKind.DONE:
            answer.set_result(body)
        elif kind is FrameKind.FAILED:
            answer.set_exception(WorkerError(body.decode(errors="replace")))
        else:
            answer.set_exception(WorkerExceeded("it takes more memory than it may"))

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(min(_LOOK_SECONDS, self._asked[0].seconds), self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._asked or self.has_ended:
            return
        try:
            now = cpu_seconds(self.pid), self._loop.time()
        except OSError:
            return  # reading will find out
        if self._since is None:
            self._since = now
        most = self._asked[0].seconds
        if now[0] - self._since[0] > most:
            self.end(WorkerTooSlow(f"it takes more than {most:.3g} s of a processor"))
        elif now[1] - self._since[1] > _PATIENCE_SECONDS + most:
            self.end(WorkerInterrupted())
        else:
            self._watch()
