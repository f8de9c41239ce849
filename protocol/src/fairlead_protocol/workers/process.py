"""A process of `WorkerRoot`'s tree: it loads a program, does its jobs one after the other, and forks.

The root imports what programs need and forks stems; a stem loads one program and forks those that do its jobs. So a
process that was ended is replaced in milliseconds, and all share the memory of what was loaded.
"""

import gc
import importlib
import os
import resource
import socket
import sys
import time
from collections.abc import Callable

import msgspec

from fairlead_protocol.workers.child import (
    be_killed_with,
    bury_descendants,
    give_memory_back,
    leave_signals_to_parent,
)
from fairlead_protocol.workers.frames import FrameReader, Kind, framed
from fairlead_protocol.workers.limits import Limits, MemoryLimit

_READ_BYTES = 64 * 1024
_MOST_READ_BYTES = 2**20
"""At a time, where so much is known to come."""
_MOST_SAID = 1000
"""Characters of an error that are told: it may quote all that the program is made of, and goes into logs, into every
line of a gateway's signals and into a condition."""
_SOON_SECONDS = 0.001
"""For which an answer may wait for the next."""

Handler = Callable[[bytes, bool], bytes]
"""Does a job. Told whether it may take long, as nobody waits behind it."""
Program = Callable[[bytes], tuple[bytes, Handler]]
"""Made of bytes, it tells something of itself and does jobs."""


class Load(msgspec.Struct, array_like=True):
    """The body of a LOAD."""

    program: str
    """As `module:name`."""
    payload: bytes


class Fork(msgspec.Struct, array_like=True):
    """The body of a FORK."""

    limits: Limits | None
    """None = this one runs nothing that needs them."""
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
    _serve(channel, Fork(None), None)


def _serve(channel: socket.socket, order: Fork, handler: Handler | None) -> None:
    """Until the channel's other end is closed. Answers go out when nothing more is to be done at once, or soon."""
    channel.sendall(framed(Kind.BORN, os.getpid().to_bytes(4, "little")))
    memory = None if order.limits is None else MemoryLimit(order.limits)
    frames, unsent, since = FrameReader(), bytearray(), 0.0
    while True:
        data, fds, _, _ = socket.recv_fds(channel, max(_READ_BYTES, min(frames.num_missing, _MOST_READ_BYTES)), 1)
        if not data:
            return
        if memory is not None and frames.num_awaited:
            memory.allow(frames.num_awaited)
        for kind, body in frames.feed(data):
            if kind is Kind.FORK:
                _fork(channel, fds[0], msgspec.msgpack.decode(body, type=Fork), handler)
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


def _answered(kind: Kind, body: bytes, handler: Handler | None) -> tuple[bytes, Handler | None]:
    """What is replied, and what does the next job."""
    try:
        if kind is Kind.LOAD:
            answer, handler = _loaded(msgspec.msgpack.decode(body, type=Load))
        else:
            assert handler is not None
            answer = handler(body, kind is Kind.LONG_JOB)
        return framed(Kind.DONE, answer), handler
    except MemoryError:
        return framed(Kind.OUT_OF_MEMORY), handler
    except BaseException as error:  # a panic in Rust is no Exception
        return framed(Kind.FAILED, _said(error).encode(errors="replace")), handler


def _said(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= _MOST_SAID else f"{text[:_MOST_SAID]}…"


def _loaded(load: Load) -> tuple[bytes, Handler]:
    module, _, name = load.program.partition(":")
    program: Program = getattr(importlib.import_module(module), name)
    answer, handler = program(load.payload)
    gc.collect()
    give_memory_back()
    gc.freeze()  # or the first collection of each process below would copy all of it
    return answer, handler


def _fork(channel: socket.socket, fd: int, order: Fork, handler: Handler | None) -> None:
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
