"""What any source may take: of bytes, of time, and how slow it may be. Each listing and each file of any remote goes
through here, whatever fetches it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar, cast

from fairlead_engine.download.remote import DownloadError, Interrupted, SourceListing
from fairlead_protocol.downloads import DownloadFailure

ANSWER_SECONDS = 60.0
"""From a request to the last of the answer's headers."""
LISTING_SECONDS = 300.0
"""For one whole listing, however many requests it takes."""
FILE_SECONDS = 7 * 86400.0
"""For one file over one connection."""
STALL_SECONDS = 90.0
"""Without anything: longer than any source's own patience."""
SLOW_SECONDS = 60.0
SLOW_BYTES = 60 << 10
"""A connection that brings no more in that time is given up for another."""
MOST_FILES = 100_000
"""Of a listing."""

Answer = TypeVar("Answer")


class Pace:
    """Of one connection. Raises Interrupted where it is too slow, or takes too long."""

    def __init__(self) -> None:
        self._began = self._since = time.monotonic()
        self._num_bytes = 0

    def came(self, num_bytes: int) -> None:
        """So many bytes more."""
        self._num_bytes += num_bytes
        now = time.monotonic()
        if now - self._began > FILE_SECONDS:
            raise Interrupted(f"the connection has taken more than {FILE_SECONDS:g} s")
        if now - self._since > SLOW_SECONDS:
            if self._num_bytes < SLOW_BYTES:
                raise Interrupted("the connection has become slow")
            self._since, self._num_bytes = now, 0

    def skipped(self) -> None:
        """Bytes came that its reader does not want; it minds their pace itself."""
        self._since, self._num_bytes = time.monotonic(), 0


async def listed(listing: Callable[[], Awaitable[SourceListing]], source: str) -> SourceListing:
    """What a source lists. Raises Interrupted where that takes too long, DownloadError where it is too much."""
    found = await in_time(listing, LISTING_SECONDS, "the listing")
    if len(found.files) > MOST_FILES:
        problem = f"{source} lists more than {MOST_FILES} files: name the folder that has config.json"
        raise DownloadError(DownloadFailure.SOURCE_NOT_SUPPORTED, problem)
    return found


async def paced(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes; an empty chunk says that some were skipped. Raises Interrupted where they are slow or stop."""
    pace = Pace()
    async with aclosing(cast(Any, chunks)):
        while True:
            try:
                chunk = await in_time(chunks.__anext__, STALL_SECONDS, "what comes next")
            except StopAsyncIteration:
                return
            if chunk:
                pace.came(len(chunk))
                yield chunk
            else:
                pace.skipped()


async def in_time(work: Callable[[], Awaitable[Answer]], seconds: float, what: str) -> Answer:
    """The work's result. Raises Interrupted where it takes longer."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await work()
    except TimeoutError:
        if not limit.expired():
            raise
        raise Interrupted(f"{what} took more than {seconds:g} s") from None
