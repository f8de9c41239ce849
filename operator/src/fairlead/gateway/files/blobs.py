"""Where the bytes of files lie: a folder, such as a claim that all gateways mount, or a bucket.

Written in pieces and read in pieces: no file is ever whole in memory. Buckets are read and written by obstore, which
takes credentials and addresses from the services' variables (AWS_…, GOOGLE_…, AZURE_…). Messages of obstore are not
repeated, as they may quote signed addresses.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from obstore.store import ObjectStore

logger = logging.getLogger(__name__)

PIECE_BYTES = 256 * 1024
"""Read at once."""
_BUFFER_BYTES = 8 * 2**20
"""Of a part of an upload to a bucket."""
_SCHEMES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""And how the names of their variables begin."""
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "GOOGLE_BASE_URL", "AZURE_ENDPOINT")


class BlobError(Exception):
    """Bytes cannot be read or written; the text is for operators."""


class Blobs(Protocol):
    """Bytes under names. Names are made by the gateway: letters, digits, `-` and `_`."""

    async def check(self) -> None:
        """Raises BlobError where nothing can be written."""

    async def write(self, name: str, pieces: AsyncIterator[bytes]) -> int:
        """All of it or nothing, in place of what the name had; the number of bytes. Raises BlobError, and what `pieces`
        raises."""
        ...

    def read(self, name: str) -> AsyncGenerator[bytes]:
        """In pieces. Raises BlobError."""
        ...

    async def delete(self, name: str) -> None:
        """Nothing happens where there is nothing. Raises BlobError."""


def make_blobs(place: str) -> Blobs:
    """`place`: as of the setting `file_store`. Raises BlobError."""
    if place.partition("://")[0] not in _SCHEMES:
        if not Path(place).is_absolute():
            raise BlobError(f"{place!r} is neither the absolute path of a folder nor s3://…, gs://… or az://…")
        return Folder(Path(place))
    try:
        from obstore.store import from_url
    except ImportError:
        raise BlobError(f"{place} needs a library that is not installed: pip install 'fairlead[buckets]'") from None
    is_plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
    client: Any = {"allow_http": is_plain}
    try:
        return Bucket(from_url(place, client_options=client))
    except Exception:  # of any type, for wrong variables
        scheme, _, _ = place.partition("://")
        problem = f"the environment does not say how to reach it; see the variables {_SCHEMES[scheme]}…"
        raise BlobError(f"{scheme}://: {problem}") from None


class Folder:
    """A folder of the file system; calls that may block run in threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def check(self) -> None:
        """Raises BlobError."""
        try:
            await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True)
            probe = self._folder / f".write-{os.getpid()}"
            await asyncio.to_thread(probe.write_bytes, b"")
            await asyncio.to_thread(probe.unlink)
        except OSError as error:
            raise BlobError(f"{self._folder}: {error.strerror}") from error

    async def write(self, name: str, pieces: AsyncIterator[bytes]) -> int:
        """Under another name until it is whole."""
        part, num_bytes, pending = self._folder / f"{name}.part", 0, bytearray()
        try:
            await asyncio.to_thread(part.write_bytes, b"")
            async for piece in pieces:
                pending += piece
                if len(pending) >= PIECE_BYTES:
                    num_bytes += await asyncio.to_thread(_append, part, bytes(pending))
                    pending.clear()
            num_bytes += await asyncio.to_thread(_append, part, bytes(pending))
            await asyncio.to_thread(os.replace, part, self._folder / name)
        except OSError as error:
            await asyncio.to_thread(part.unlink, missing_ok=True)
            raise BlobError(f"{self._folder}: {error.strerror}") from error
        except BaseException:
            await asyncio.shield(asyncio.to_thread(part.unlink, missing_ok=True))
            raise
        return num_bytes

    async def read(self, name: str) -> AsyncGenerator[bytes]:
        start = 0
        try:
            while piece := await asyncio.to_thread(_piece, self._folder / name, start):
                start += len(piece)
                yield piece
        except OSError as error:
            raise BlobError(f"{self._folder / name}: {error.strerror}") from error

    async def delete(self, name: str) -> None:
        """And what a killed gateway left of it."""
        try:
            for each in (name, f"{name}.part"):
                await asyncio.to_thread((self._folder / each).unlink, missing_ok=True)
        except OSError as error:
            raise BlobError(f"{self._folder / name}: {error.strerror}") from error


class Bucket:
    """A bucket, or what is below a prefix of it."""

    def __init__(self, store: "ObjectStore") -> None:
        self._store = store

    async def check(self) -> None:
        """Raises BlobError."""
        await self.write("write-check", _nothing())
        await self.delete("write-check")

    async def write(self, name: str, pieces: AsyncIterator[bytes]) -> int:
        """In parts, which the service puts together at the end."""
        import obstore

        num_bytes = 0
        writer = obstore.open_writer_async(self._store, name, buffer_size=_BUFFER_BYTES, max_concurrency=2)
        async for piece in pieces:  # what this raises leaves an upload that is never completed
            num_bytes += len(piece)
            await self._done(writer.write(piece))
        await self._done(writer.close())
        return num_bytes

    async def read(self, name: str) -> AsyncGenerator[bytes]:
        import obstore

        answer = await self._done(obstore.get_async(self._store, name))
        pieces = aiter(answer.stream(min_chunk_size=PIECE_BYTES))
        while (piece := await self._done(anext(pieces, None))) is not None:
            yield bytes(piece)

    async def delete(self, name: str) -> None:
        import obstore

        try:
            await obstore.delete_async(self._store, name)
        except FileNotFoundError:
            pass
        except Exception as error:
            raise _failure(error) from None

    async def _done(self, call: Any) -> Any:
        try:
            return await call
        except Exception as error:
            raise _failure(error) from None


async def _nothing() -> AsyncIterator[bytes]:
    empty: tuple[bytes, ...] = ()
    for piece in empty:
        yield piece


def _piece(path: Path, start: int) -> bytes:
    with path.open("rb") as file:  # not left open: whoever reads may be cancelled while a thread opens
        file.seek(start)
        return file.read(PIECE_BYTES)


def _append(path: Path, data: bytes) -> int:
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return len(data)


def _failure(error: Exception) -> BlobError:
    return BlobError(f"the bucket answers {type(error).__name__}")
