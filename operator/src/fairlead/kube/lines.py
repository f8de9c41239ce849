"""Lines of an HTTP body that is still being sent: watches of the API, and other streams of one JSON object per line."""

from collections.abc import AsyncIterator

import aiohttp


class LineTooLong(ValueError):
    """More than the limit came without an end of line."""


class LineReader:
    """Cuts a stream into lines, with bounded memory and without copying long lines again and again."""

    def __init__(self, limit: int | None = None) -> None:
        """`limit`: bytes of the longest line that is taken, None = any."""
        self._limit = limit
        self._begun: list[bytes] = []
        """Pieces of a line whose end has not come."""
        self._num_begun = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in `data`, without empty ones. Raises LineTooLong."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._begun, lines[0]))
            self._begun, self._num_begun = [], 0
        if rest:
            self._begun.append(rest)
            self._num_begun += len(rest)
        if self._limit is not None and self._num_begun > self._limit:
            raise LineTooLong(f"a line has more than {self._limit} bytes")
        return [line for line in lines if line]


async def lines(content: aiohttp.StreamReader, *, limit: int | None = None) -> AsyncIterator[bytes]:
    """Whole lines without their end, as they come; those with nothing but space are left out.

    aiohttp's own line reader gives up above 128 KiB, and objects of the API may have 1.5 MiB. `limit`: bytes of the
    longest line that is taken, None = any; raises LineTooLong.
    """
    reader = LineReader(limit)
    async for chunk in content.iter_any():
        for line in reader.feed(chunk):
            if stripped := line.strip():
                yield stripped
