"""Lines of an HTTP body that is still being sent: watches of the API, and other streams of one JSON object per line."""

from collections.abc import AsyncIterator

import aiohttp


class LineTooLong(ValueError):
    """More than the limit came without an end of line."""


async def lines(content: aiohttp.StreamReader, *, limit: int | None = None) -> AsyncIterator[bytes]:
    """Whole lines without their end, as they come; empty ones are left out.

    aiohttp's own line reader gives up above 128 KiB, and objects of the API may have 1.5 MiB. `limit`: bytes of the
    longest line that is taken, None = any; raises LineTooLong.
    """
    pending = bytearray()
    async for chunk in content.iter_any():
        pending += chunk
        while (end := pending.find(b"\n")) >= 0:
            line = bytes(pending[:end]).strip()
            del pending[: end + 1]
            if line:
                yield line
        if limit is not None and len(pending) > limit:
            raise LineTooLong(f"a line of more than {limit} bytes")
