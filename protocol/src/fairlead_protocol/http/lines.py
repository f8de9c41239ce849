"""Lines of an HTTP body that is still being sent: watches of the API, and other streams of one JSON object per line."""

from collections.abc import AsyncIterator

from fairlead_protocol.http.client_connection import Connection


class LineTooLong(ValueError):
    """More than the limit came without an end of line."""


async def lines(response: Connection, *, limit: int | None = None) -> AsyncIterator[bytes]:
    """Whole lines without their end, as they come; those with nothing but space are left out.

    `limit`: bytes of the longest line that is taken, None = any. Raises LineTooLong, and TransportError.
    """
    async for batch in batches(response, limit=limit):
        for line in batch:
            if stripped := line.strip():
                yield stripped


async def batches(response: Connection, *, limit: int | None = None) -> AsyncIterator[list[bytes]]:
    """The lines that came together, empty ones too. A long line is not copied with every piece that comes. Raises as
    `lines` does."""
    begun: list[bytes] = []  # pieces of a line whose end has not come
    num_begun = 0
    while chunk := await response.chunk():
        *whole, rest = chunk.split(b"\n")
        if limit is not None and num_begun + len(whole[0] if whole else rest) > limit:
            raise LineTooLong(f"a line has more than {limit} bytes")
        if whole:
            whole[0] = b"".join((*begun, whole[0]))
            begun, num_begun = [], 0
        if rest:
            begun.append(rest)
            num_begun += len(rest)
        if whole:
            yield whole
