"""A file that is being fetched: written in order, with its digest, and resumed after an interruption."""

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fairlead_engine.sources.remote import RemoteFile

PART = ".part"
_FLUSH_BYTES = 256 << 10
"""Bytes per write in a thread; a killed process loses at most so many of each file."""
_READ_BYTES = 4 << 20
Answer = TypeVar("Answer")


async def in_thread(work: Callable[..., Answer], *arguments: object) -> Answer:
    """The work's result. A cancelled caller waits for the thread's end: threads cannot be ended, and must keep the file
    and the lock on the folder meanwhile."""
    call = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        while not call.done():
            try:
                await asyncio.wait({call})
            except asyncio.CancelledError:
                continue
        if not call.cancelled():
            call.exception()
        raise


class _Digests:
    """Digests of the bytes so far: the source's kind, and SHA-256 in any case."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        # Git's digest begins with the size; without a stated size, the SHA-256 has to do.
        self._blob = None
        if file.git_blob is not None and file.size is not None:
            self._blob = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)

    def update(self, content: bytes) -> None:
        self.sha256.update(content)
        if self._blob is not None:
            self._blob.update(content)

    def problem(self) -> str | None:
        expected = self._file
        if expected.sha256 is not None and self.sha256.hexdigest() != expected.sha256:
            return f"has the SHA-256 {self.sha256.hexdigest()}, not {expected.sha256}"
        if self._blob is not None and self._blob.hexdigest() != expected.git_blob:
            return f"is blob {self._blob.hexdigest()} to git, not {expected.git_blob}"
        return None


class PartFile:
    """`PATH.part` until complete and checked, then `PATH`. Bytes are written in pieces, in a thread."""

    def __init__(self, folder: Path, file: RemoteFile) -> None:
        self.file = file
        self.target = folder / file.path
        self._path = folder / (file.path + PART)
        self._digests = _Digests(file)
        self._pending: list[bytes] = []
        self._num_pending = 0
        self._written = 0

    @property
    def size(self) -> int:
        """Bytes so far, written or pending: the next offset."""
        return self._written + self._num_pending

    async def resume(self) -> int:
        """Reads an earlier run's bytes into the digest. Returns their number. Raises OSError."""
        await in_thread(self._resume)
        return self._written

    async def append(self, chunk: bytes) -> None:
        """Raises OSError."""
        self._pending.append(chunk)
        self._num_pending += len(chunk)
        if self._num_pending >= _FLUSH_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Raises OSError; the next run counts the written bytes by the file."""
        if self._pending:
            await in_thread(self._write)

    def problem(self) -> str | None:
        """Problem of the complete file; None = as the source states."""
        if self.file.size is not None and self._written != self.file.size:
            return f"has {self._written} bytes, not {self.file.size}"
        return self._digests.problem()

    async def finish(self) -> str:
        """Moves the file into place; returns the SHA-256 in hex."""
        await in_thread(self._finish)
        return self._digests.sha256.hexdigest()

    def discard(self) -> int:
        """Throws the file away; returns the number of lost bytes."""
        lost, self._written, self._num_pending = self.size, 0, 0
        self._pending.clear()
        self._digests = _Digests(self.file)
        self._path.unlink(missing_ok=True)
        return lost

    def _resume(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self.file.size is not None and self._path.exists() and self._path.stat().st_size > self.file.size:
            self._path.unlink()
        if self._path.exists():
            with self._path.open("rb") as file:
                while chunk := file.read(_READ_BYTES):
                    self._digests.update(chunk)
                    self._written += len(chunk)

    def _write(self) -> None:
        content = b"".join(self._pending)
        with self._path.open("ab", buffering=0) as file:
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(self._written)  # else the next try would follow a part of these bytes
                raise
        self._digests.update(content)
        self._written += len(content)
        self._pending.clear()
        self._num_pending = 0

    def _finish(self) -> None:
        with self._path.open("ab") as file:  # an empty file was not created yet
            os.fsync(file.fileno())
        self._path.rename(self.target)
