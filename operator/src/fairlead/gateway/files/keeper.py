"""The keeper of files: takes them within limits, gives them out, deletes what is old."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fairlead.gateway.files.blobs import BlobError, Blobs
from fairlead.gateway.files.file_row import FileRow
from fairlead.gateway.openai.errors import OpenAIError, RequestOutcome, bad_request
from fairlead.gateway.stored.errors import NotStored, StoreError

if TYPE_CHECKING:
    from fairlead.gateway.files.file_table import FileTable

logger = logging.getLogger(__name__)

EXPIRE_SECONDS = 600.0
RETRY_SECONDS = 5.0
_EXPIRED_AT_ONCE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """What files may take."""

    max_bytes: int
    """Of one file."""
    max_bytes_of_owner: int
    """Of all files of one owner."""
    retention: float
    """Seconds for which a file is kept where its upload does not say."""


class FileKeeper:
    """Of one gateway. `owner`: whose files; nobody sees those of another."""

    def __init__(self, table: "FileTable", blobs: Blobs, limits: FileLimits) -> None:
        self.table = table
        self.blobs = blobs
        self.limits = limits
        self.reader_of: Callable[[str], Awaitable[str | None]] | None = None
        """Finds who still reads a file, by id; None = nobody reads files."""
        self.totals = (0, 0)
        """Number and bytes of all files, as of the last look."""

    async def room(self, owner: str) -> int:
        """Bytes that a new file may have. Raises OpenAIError where nothing is left, and StoreError."""
        left = self.limits.max_bytes_of_owner - await self.table.num_bytes(owner)
        if left <= 0:
            most = f"{self.limits.max_bytes_of_owner} bytes"
            raise bad_request(f"file: your files have {most} or more already; delete some", param="file")
        return min(left, self.limits.max_bytes)

    async def put(
        self,
        owner: str,
        purpose: str,
        filename: str,
        pieces: AsyncIterator[bytes],
        *,
        seconds: float | None = None,
    ) -> FileRow:
        """A file that nobody sees until `publish`. `seconds`: for which it is kept; None = the retention. Raises
        StoreError, BlobError, and what `pieces` raises."""
        now = time.time()
        row = FileRow(
            id=f"file-{secrets.token_hex(16)}",
            owner=owner,
            purpose=purpose,
            filename=filename,
            num_bytes=0,
            created_at=now,
            expires_at=now + (self.limits.retention if seconds is None else seconds),
        )
        await self.table.begin(row)
        try:
            return replace(row, num_bytes=await self.blobs.write(row.id, pieces))
        except BaseException:
            await asyncio.shield(self._dropped(row.id))
            raise

    async def publish(self, row: FileRow) -> None:
        """The file is whole and right. Raises StoreError."""
        await self.table.finish(row)

    async def delete(self, owner: str, file_id: str) -> None:
        """Its bytes, and then its row. Raises NotStored, StoreError, BlobError, and OpenAIError while it is read."""
        await self.table.get(owner, file_id)
        if self.reader_of is not None and (reader := await self.reader_of(file_id)) is not None:
            message = f"The file is read by {reader}, which has not ended; cancel that first."
            raise OpenAIError(409, message, code="file_in_use")
        await self.drop(file_id)

    async def drop(self, file_id: str) -> None:
        """The same without a look at whose it is."""
        await self.blobs.delete(file_id)
        await self.table.delete(file_id)

    async def run(self) -> None:
        """Prepares database and file store, and then deletes what is old, for ever."""
        while not await self._tried("are not ready", self._start):
            await asyncio.sleep(RETRY_SECONDS)
        while True:
            await self._tried("keep what is old", self._expire)
            await asyncio.sleep(EXPIRE_SECONDS)

    async def _start(self) -> None:
        await self.table.database.start()
        await self.blobs.check()

    async def _expire(self) -> None:
        while ids := await self.table.expired(_EXPIRED_AT_ONCE):
            for file_id in ids:
                await self.drop(file_id)
        self.totals = await self.table.totals()

    async def _dropped(self, file_id: str) -> None:
        await self._tried("keep what was not sent to its end", lambda: self.drop(file_id))

    async def _tried(self, problem: str, work: Callable[[], Awaitable[object]]) -> bool:
        try:
            await work()
        except (StoreError, BlobError) as error:
            logger.warning("the files of clients %s: %s", problem, error)
            return False
        return True


def file_not_found(error: NotStored) -> OpenAIError:
    """404, as OpenAI answers."""
    return OpenAIError(404, f"No such File object: {error.id}", param="id", code="file_not_found")


def unreachable(error: StoreError | BlobError) -> OpenAIError:
    """503."""
    logger.warning("files cannot be read or written: %s", error)
    message = "The store of files does not answer; try again."
    return OpenAIError(503, message, code="store_unavailable", retry_after=5, outcome=RequestOutcome.OVERLOADED)
