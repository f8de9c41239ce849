"""What a process and its owner send each other: a length, a kind, and bytes."""

import struct
from enum import IntEnum

_HEAD = struct.Struct("<IB")


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


class FrameReader:
    """Takes bytes as they come, and copies those of a large frame once."""

    def __init__(self) -> None:
        self._head = b""
        """Of a frame, and not whole."""
        self._kind = Kind.DONE
        self._pieces: list[bytes] = []
        """Of the body of a frame of that kind."""
        self.num_missing = 0
        """Bytes of it; 0 = none has begun."""
        self.num_awaited = 0
        """Bytes of it when it is whole."""

    def feed(self, data: bytes) -> list[tuple[Kind, bytes]]:
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
                self._kind, self._pieces = Kind(kind), [body]
                self.num_missing, self.num_awaited = start - len(data), num_bytes
                break
            frames.append((Kind(kind), body))
        self._head = data[start:]
        return frames
