"""Who reads the engine's stream: a bounded buffer for each, so that a slow reader costs only itself.

Knows lines of bytes; not what is in them, nor how they are sent. Belongs to one event loop.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

BUFFER_BYTES = 8 * 2**20
"""What one follower may leave unread, twice the ring it may begin with: seconds of prefill on a fast device."""


class Follower:
    """One reader's lines that have not been sent yet. It is cut off when they become more than `max_bytes`."""

    def __init__(self, lines: Iterable[bytes], max_bytes: int) -> None:
        self.was_cut_off = False
        self._lines = list(lines)
        self._num_bytes = sum(map(len, self._lines))
        self._max_bytes = max_bytes
        self._has_ended = False
        self._something = asyncio.Event()
        if self._lines:
            self._something.set()

    def put(self, line: bytes) -> bool:
        """Adds a line; False when it was one too many."""
        self._num_bytes += len(line)
        if self._num_bytes > self._max_bytes:
            self.was_cut_off = True
            self._lines.clear()
            self.end()
            return False
        self._lines.append(line)
        self._something.set()
        return True

    def end(self) -> None:
        """Nothing more will come."""
        self._has_ended = True
        self._something.set()

    async def take(self) -> bytes:
        """All lines that have come, waiting for one; empty at the end."""
        await self._something.wait()
        if not self._has_ended:
            self._something.clear()
        chunk = b"".join(self._lines)
        self._lines.clear()
        self._num_bytes = 0
        return chunk


class Followers:
    """All that follow now."""

    def __init__(self, *, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.num_cut_off = 0
        """Followers that were too slow, since the start."""
        self._following: set[Follower] = set()
        self._buffer_bytes = buffer_bytes

    def __len__(self) -> int:
        return len(self._following)

    @contextmanager
    def joined(self, first: Iterable[bytes]) -> Iterator[Follower]:
        """A new follower, who gets `first` and then every line that is sent."""
        follower = Follower(first, self._buffer_bytes)
        self._following.add(follower)
        try:
            yield follower
        finally:
            self._following.discard(follower)

    def send(self, line: bytes) -> None:
        """Gives a line to all, and cuts off who has no room for it."""
        for follower in [each for each in self._following if not each.put(line)]:
            self._following.discard(follower)
            self.num_cut_off += 1

    def end(self) -> None:
        """Ends every follower's stream."""
        for follower in self._following:
            follower.end()
        self._following.clear()
