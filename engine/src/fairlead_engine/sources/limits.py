"""Limits on any source: bytes, time, and least speed. Each listing and each file of any remote goes through here."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar, cast

from fairlead_engine.sources.remote import Interrupted, SourceListing, unsupported

ANSWER_SECONDS = 60.0
"""From a request to the last of the answer's headers."""
LISTING_SECONDS = 300.0
"""For a whole listing, over several requests."""
FILE_SECONDS = 7 * 86400.0
"""For one file over one connection."""
STALL_SECONDS = 90.0
"""Longest silence: longer than any source's patience."""
SLOW_SECONDS = 60.0
SLOW_BYTES = 60 << 10
"""A connection with fewer bytes in that time is replaced."""
MOST_FILES = 100_000

Answer = TypeVar("Answer")


class Pace:
    """Speed of one connection. Raises Interrupted for a slow connection, and after too long a time."""

    def __init__(self) -> None:
        self._began = self._since = time.monotonic()
        self._num_bytes = 0

    def came(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        now = time.monotonic()
        if now - self._began > FILE_SECONDS:
            raise Interrupted(f"the connection has taken more than {FILE_SECONDS:g} s")
        if now - self._since > SLOW_SECONDS:
            if self._num_bytes < SLOW_BYTES:
                raise Interrupted("the connection has become slow")
            self._since, self._num_bytes = now, 0

    def skipped(self) -> None:
        """Unwanted bytes came, whose pace the reader checks."""
        self._since, self._num_bytes = time.monotonic(), 0


async def listed(listing: Callable[[], Awaitable[SourceListing]], source: str) -> SourceListing:
    """A source's listing. Raises Interrupted for a slow listing, DownloadError for a large listing."""
    found = await in_time(listing, LISTING_SECONDS, "the listing")
    if len(found.files) > MOST_FILES:
        raise unsupported(f"{source} lists more than {MOST_FILES} files: name the folder that has config.json")
    return found


async def paced(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes; an empty chunk stands for skipped bytes. Raises Interrupted for slow bytes, or silence."""
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
    """The work's result. Raises Interrupted after `seconds`."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await work()
    except TimeoutError:
        if not limit.expired():
            raise
        raise Interrupted(f"{what} took more than {seconds:g} s") from None
