"""What a process and its owner send each other: a length, a kind, and bytes."""

import socket
import struct
from enum import IntEnum

_HEAD = struct.Struct("<IB")
HEAD_BYTES = _HEAD.size


class Kind(IntEnum):
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


def framed(kind: Kind, body: bytes = b"") -> bytes:
    return _HEAD.pack(len(body), kind) + body


def head(raw: bytes) -> tuple[int, Kind]:
    """Bytes of the body that follows, and what it is."""
    num_bytes, kind = _HEAD.unpack(raw)
    return num_bytes, Kind(kind)


class FrameReader:
    """Takes bytes as they come."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[tuple[Kind, bytes]]:
        """The frames that are whole now."""
        self._rest += data
        frames, start = [], 0
        while len(self._rest) - start >= HEAD_BYTES:
            num_bytes, kind = _HEAD.unpack_from(self._rest, start)
            end = start + HEAD_BYTES + num_bytes
            if len(self._rest) < end:
                break
            frames.append((Kind(kind), bytes(self._rest[start + HEAD_BYTES : end])))
            start = end
        del self._rest[:start]
        return frames


def read_exactly(channel: socket.socket, num_bytes: int) -> bytes:
    """Waits for so many. Raises EOFError where fewer come."""
    found = bytearray(num_bytes)
    view = memoryview(found)
    while view:
        if not (read := channel.recv_into(view)):
            raise EOFError
        view = view[read:]
    return bytes(found)
