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
    """Takes bytes as they come."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[tuple[Kind, bytes]]:
        """The frames that are whole now."""
        known: bytes | bytearray = data
        if self._rest:
            self._rest += data
            known = self._rest
        frames, start = [], 0
        while len(known) - start >= _HEAD.size:
            num_bytes, kind = _HEAD.unpack_from(known, start)
            end = start + _HEAD.size + num_bytes
            if len(known) < end:
                break
            frames.append((Kind(kind), bytes(known[start + _HEAD.size : end])))
            start = end
        if known is data:
            self._rest += data[start:]
        else:
            del self._rest[:start]
        return frames

    @property
    def num_awaited(self) -> int:
        """Bytes of the frame that has begun and is not whole."""
        return _HEAD.unpack_from(self._rest)[0] if len(self._rest) >= _HEAD.size else 0
