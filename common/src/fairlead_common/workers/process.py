"""A process of the tree of `WorkerRoot`, which loads a program, does jobs one after the other, and forks; and
the frames between process and owner: a length, a kind, and bytes.

The root imports the modules of programs and forks stems; a stem loads one program and forks processes for jobs. So an
ended process is replaced in milliseconds, and all processes share the memory of the loaded program.
"""

import ctypes
import gc
import importlib
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum

import msgspec

from fairlead_common.workers.limits import MemoryLimit, WorkerLimits

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def be_killed_with(parent_pid: int) -> None:
    """Makes Linux kill this process when the parent ends; elsewhere the process ends with its input."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # it died before that call
            os._exit(1)


def leave_signals_to_parent() -> None:
    """Ctrl-C and a pod's SIGTERM may reach the whole process group; the parent decides when work ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def bury_descendants() -> None:
    """Lets no descendant of this process stay behind as a zombie."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def give_memory_back() -> None:
    """Returns what is free within the C library's heap to the system, where the library can."""
    with suppress(AttributeError):  # of musl and macOS
        ctypes.CDLL(None).malloc_trim(0)


def _prctl(option: int, argument: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, argument)


_HEAD = struct.Struct("<IB")


class FrameKind(IntEnum):
    """Of a frame; the first four go to a process, the others come from one."""

    LOAD = 1
    """The name of a program, and what it is made of."""
    JOB = 2
    """Others wait behind it."""
    LONG_JOB = 3
    FORK = 4
    """Limits; the channel of the new process comes along."""
    BORN = 5
    """The number of the process, before anything else."""
    DONE = 6
    FAILED = 7
    """What the program raised, as text."""
    OUT_OF_MEMORY = 8


def framed(kind: FrameKind, body: bytes = b"") -> bytes:
    return _HEAD.pack(len(body), kind) + body


class FrameReader:
    """Reassembles frames from chunks; copies the bytes of a large frame once."""

    def __init__(self) -> None:
        self._head = b""
        """Of a frame, and not whole."""
        self._kind = FrameKind.DONE
        self._pieces: list[bytes] = []
        """Of the body of a frame of that kind."""
        self.num_missing = 0
        """Missing bytes of the current body; 0 = no body has begun."""
        self.num_awaited = 0
        """Size of the current body when complete."""

    def feed(self, data: bytes) -> list[tuple[FrameKind, bytes]]:
        """The frames that are whole now."""
        if len(data) < self.num_missing:
            self._pieces.append(data)
            self.num_missing -= len(data)
            return []
        frames, start = [], self.num_missing
        if start:
            frames.append((self._kind, b"".join([*self._pieces, data[:start]])))
            self._pieces, self.num_missing, self.num_awaited = [], 0, 0
        elif self._head:
            data = self._head + data
        while len(data) - start >= _HEAD.size:
            num_bytes, kind = _HEAD.unpack_from(data, start)
            start += _HEAD.size
            body = data[start : start + num_bytes]
            start += num_bytes
            if start > len(data):
                self._kind, self._pieces = FrameKind(kind), [body]
                self.num_missing, self.num_awaited = start - len(data), num_bytes
                break
            frames.append((FrameKind(kind), body))
        self._head = data[start:]
        return frames


_READ_BYTES = 64 * 1024
_MOST_READ_BYTES = 2**20
"""Most bytes read at a time, where so many are announced."""
_MOST_SAID = 1000
"""Most characters of an error: an error may quote the whole program, and goes into logs, signals of gateways and
conditions."""
_SOON_SECONDS = 0.001
"""Time that an answer may wait for the next, to be sent together."""

Handler = Callable[[bytes, bool], bytes]
"""Does a job; the second argument: whether the job may take long because no other job waits behind."""
Program = Callable[[bytes], tuple[bytes, Handler]]
"""Loads bytes; returns a description of itself, and a handler of jobs."""


class LoadFrame(msgspec.Struct, array_like=True):
    """The body of a LOAD."""

    program: str
    """As `module:name`."""
    payload: bytes


class ForkFrame(msgspec.Struct, array_like=True):
    """The body of a FORK."""

    limits: WorkerLimits | None
    """None = the process runs no program."""
    niceness: int = 0


def main() -> None:
    """`process PARENT_PID MODULE…`, with its channel as standard input."""
    leave_signals_to_parent()
    be_killed_with(int(sys.argv[1]))
    bury_descendants()
    channel = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    for module in sys.argv[2:]:
        importlib.import_module(module)
    os.dup2(nothing, 2)  # what Rust says of a panic is told otherwise
    _serve(channel, ForkFrame(None), None)


def _serve(channel: socket.socket, order: ForkFrame, handler: Handler | None) -> None:
    """Serves until the other end of the channel is closed. Sends answers when no further job is at hand, or soon."""
    channel.sendall(framed(FrameKind.BORN, os.getpid().to_bytes(4, "little")))
    memory = None if order.limits is None else MemoryLimit(order.limits)
    frames, unsent, since = FrameReader(), bytearray(), 0.0
    while True:
        data, fds, _, _ = socket.recv_fds(channel, max(_READ_BYTES, min(frames.num_missing, _MOST_READ_BYTES)), 1)
        if not data:
            return
        if memory is not None and frames.num_awaited:
            memory.allow(frames.num_awaited)
        for kind, body in frames.feed(data):
            if kind is FrameKind.FORK:
                _fork(channel, fds[0], msgspec.msgpack.decode(body, type=ForkFrame), handler)
                continue
            if memory is not None:
                memory.allow(len(body))
            reply, handler = _answered(kind, body, handler)
            since = since if unsent else time.monotonic()
            unsent += reply
            if len(unsent) > _READ_BYTES or time.monotonic() - since > _SOON_SECONDS:
                channel.sendall(unsent)
                unsent.clear()
        if unsent:
            channel.sendall(unsent)
            unsent.clear()


def _answered(kind: FrameKind, body: bytes, handler: Handler | None) -> tuple[bytes, Handler | None]:
    """The reply, and the handler of the next job."""
    try:
        if kind is FrameKind.LOAD:
            answer, handler = _loaded(msgspec.msgpack.decode(body, type=LoadFrame))
        else:
            assert handler is not None
            answer = handler(body, kind is FrameKind.LONG_JOB)
        return framed(FrameKind.DONE, answer), handler
    except MemoryError:
        return framed(FrameKind.OUT_OF_MEMORY), handler
    except BaseException as error:  # a panic in Rust is no Exception
        return framed(FrameKind.FAILED, _said(error).encode(errors="replace")), handler


def _said(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= _MOST_SAID else f"{text[:_MOST_SAID]}…"


def _loaded(load: LoadFrame) -> tuple[bytes, Handler]:
    module, _, name = load.program.partition(":")
    program: Program = getattr(importlib.import_module(module), name)
    answer, handler = program(load.payload)
    gc.collect()
    give_memory_back()
    gc.freeze()  # or the first collection of each process below would copy all of it
    return answer, handler


def _fork(channel: socket.socket, fd: int, order: ForkFrame, handler: Handler | None) -> None:
    parent = os.getpid()
    if os.fork():
        os.close(fd)
        return
    try:
        channel.close()
        be_killed_with(parent)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.nice(order.niceness)
        _serve(socket.socket(fileno=fd), order, handler)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
