"""`download`: a model from a source into a models folder, with the steps common to all remotes: choice of files,
parallel fetching, retries, checks, moving into place."""

import asyncio
import errno
import hashlib
import logging
import math
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TypeVar

from fairlead_common.models.gguf_file import GGUF_PART
from fairlead_common.wire.downloads import DownloadStage
from fairlead_common.wire.model_sources import parse_source
from fairlead_engine.sources import archive, models_folder, pickled_weights, selection
from fairlead_engine.sources.limits import listed, paced
from fairlead_engine.sources.part_file import PART, PartFile, in_thread
from fairlead_engine.sources.remote import (
    Changed,
    DownloadError,
    Interrupted,
    Remote,
    RemoteFile,
    SourceListing,
    mismatch,
    no_space,
    remote_of,
    unreachable,
)
from fairlead_engine.sources.reporting import Reporter

_SUFFIXES = frozenset({".safetensors", ".gguf"}) | pickled_weights.SUFFIXES
"""Weights to be read by the engine, or converted."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_WAIT_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_ROOM_BYTES = 64 << 20
"""Room made at a time for files of unknown size."""
_READ_BYTES = 4 << 20
_ARCHIVE = ".archive"
"""Folder of archives and accompanying files, beside the unpacked ones."""

_log = logging.getLogger("fairlead_engine.sources")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class DownloadOrders:
    """Settings of a download."""

    source: str
    models: models_folder.ModelsFolder
    kind: selection.SourceKind = selection.SourceKind.MODEL
    """Decides which files are fetched."""
    size_limit: int | None = None
    """Bytes of all models in the folder together; None = limited by the disk."""
    refresh: bool = False
    """Whether the source is asked although the model is there: a branch may have moved."""
    parallel: int = 8
    """Files at a time."""
    attempts: int = 8
    """Tries in a row without progress before the source counts as unreachable."""
    backoff_seconds: float = 0.5
    """Pause before the second try, doubled for each later one."""
    patience_seconds: float = math.inf
    """Time without a listing after which the source counts as unreachable, even with tries left."""


async def download(orders: DownloadOrders, reporter: Reporter, remote: Remote | None = None) -> Path:
    """The folder of the complete model. `remote`: of the source; None = by scheme. Raises DownloadError."""
    models, source = orders.models, orders.source
    parsed = parse_source(source)
    models.prepare()
    async with AsyncExitStack() as stack:
        await _our_turn(orders, reporter, stack)
        models.go_on(source)
        there = models.manifest(source)
        if there is not None and not orders.refresh:
            return _as_it_is(orders, there, reporter)
        remote = remote_of(parsed) if remote is None else remote
        stack.push_async_callback(remote.close)
        reporter.stage(DownloadStage.LISTING)
        listing = await _patiently(
            lambda: listed(remote.open, source), orders, "listing", patience=orders.patience_seconds
        )
        if there is not None and there.revision == listing.revision:
            return _as_it_is(orders, there, reporter)
        try:
            return await _Run(orders, reporter, remote, listing).run()
        except OSError as error:
            if error.errno not in _FULL:
                raise models_folder.not_writable(models.path, error) from error
            raise no_space(
                f"{models.path} is full ({error.strerror}): make room, and download again; what was fetched is kept"
            ) from error


async def _our_turn(orders: DownloadOrders, reporter: Reporter, stack: AsyncExitStack) -> None:
    """Waits for the lock: two pods of a node, or two processes, never download one model at once."""
    while not (lock := orders.models.try_lock(orders.source)).__enter__():
        lock.__exit__(None, None, None)
        if reporter.progress().stage != DownloadStage.WAITING:
            _log.info("another process downloads this model: waiting for it", extra={"source": orders.source})
            reporter.stage(DownloadStage.WAITING)
        await asyncio.sleep(_WAIT_SECONDS)
    stack.push(lock)


def _as_it_is(orders: DownloadOrders, there: models_folder.ModelManifest, reporter: Reporter) -> Path:
    folder = orders.models.model(orders.source)
    selection.check_kind([file.path for file in there.files], orders.source, orders.kind)
    models_folder.touch(folder)
    reporter.expect(there.bytes)
    reporter.have(there.bytes)
    reporter.stage(DownloadStage.DONE)
    facts = {"source": orders.source, "revision": there.revision, "folder": str(folder), "fetched_bytes": 0}
    _log.info("the model is there", extra=facts)
    return folder


class _Run:
    """The rest of one download after the listing."""

    def __init__(self, orders: DownloadOrders, reporter: Reporter, remote: Remote, listing: SourceListing) -> None:
        self._orders = orders
        self._models = orders.models
        self._reporter = reporter
        self._remote = remote
        self._listing = listing
        self._staging = orders.models.staging(orders.source)
        self._digests: dict[str, str] = {}
        """SHA-256 of complete files, by path."""
        self._num_bytes = 0
        """Size of the files to fetch: as listed, or as received."""
        self._room = 0
        """Bytes claimed within the size limit."""
        self._claiming = asyncio.Lock()

    async def run(self) -> Path:
        packed = self._listing.is_packed
        for file in self._listing.files:  # files beside archives are written before the archives' content is known
            selection.check_path(file.path)
        files = self._listing.files if packed else self._needed(self._listing.files)
        where = self._staging / _ARCHIVE if packed else self._staging
        self._keep_what_fits(files, where)
        self._make_room(files, where)
        await self._fetch_all(files, where)
        if packed:
            await self._unpack(where)
        await self._convert()
        return await self._complete()

    def _needed(self, files: tuple[RemoteFile, ...]) -> tuple[RemoteFile, ...]:
        variant = parse_source(self._orders.source).variant
        return selection.needed(files, self._orders.source, _SUFFIXES, self._orders.kind, variant)

    def _keep_what_fits(self, files: tuple[RemoteFile, ...], where: Path) -> None:
        """Keeps files of an earlier run: all of the same revision, and files with a digest that is listed again."""
        plan = self._models.planned(self._orders.source)
        if plan is None or plan.revision != self._listing.revision:
            shutil.rmtree(self._staging, ignore_errors=True)
        self._staging.mkdir(parents=True, exist_ok=True)
        wanted = {where / file.path for file in files}
        for path in [path for path in self._staging.rglob("*") if path.is_file()]:
            if path not in wanted and path.with_name(path.name.removesuffix(PART)) not in wanted:
                path.unlink()

    def _make_room(self, files: tuple[RemoteFile, ...], where: Path) -> None:
        """Checks size limit and disk before the first byte. Unknown sizes count as 0 here, and by `_take_unsized` on
        arrival."""
        total = sum(file.size or 0 for file in files)
        self._reporter.expect(total if all(file.size is not None for file in files) else None)
        plan = models_folder.DownloadPlan(source=self._orders.source, revision=self._listing.revision, bytes=total)
        self._num_bytes = total
        self._claim(total)
        self._models.plan(self._orders.source, plan)
        there = sum(path.stat().st_size for path in where.rglob("*") if path.is_file())
        # Files that are unpacked (if uncompressed) or converted need room for a second copy.
        packed = [file for file in files if file.packing is not None]
        pickled = [file for file in files if PurePosixPath(file.path).suffix in pickled_weights.SUFFIXES]
        missing = total - there + sum(file.size or 0 for file in packed or pickled)
        free = free_bytes(self._models.path)
        if missing > free:
            raise no_space(
                f"{self._orders.source} needs {missing} bytes more in {self._models.path}, which has {free}: make "
                "room, or name a larger volume"
            )

    def _claim(self, num_bytes: int) -> None:
        """Claims bytes for this model within the size limit. Raises DownloadError if other models leave no room."""
        if self._orders.size_limit is not None:
            for path in self._models.make_room(num_bytes, self._orders.size_limit, self._orders.source):
                _log.info("removed for room", extra={"folder": str(path)})
        self._room = num_bytes

    async def _take_unsized(self, num_bytes: int) -> None:
        """Counts bytes of a file without a stated size. Raises DownloadError where there is no room."""
        self._num_bytes += num_bytes
        if self._orders.size_limit is None or self._num_bytes <= self._room:
            return
        async with self._claiming:
            if self._num_bytes > self._room:
                ahead = min(_ROOM_BYTES, max(0, self._orders.size_limit - self._num_bytes))
                try:
                    await in_thread(self._claim, self._num_bytes + ahead)
                except DownloadError:
                    await in_thread(self._claim, self._num_bytes)

    def _discard(self, part: PartFile) -> None:
        lost = part.discard()
        self._reporter.have(-lost)
        if part.file.size is None:
            self._num_bytes -= lost

    async def _fetch_all(self, files: tuple[RemoteFile, ...], where: Path) -> None:
        """Fetches the largest file first. The first failure ends all."""
        parts = [PartFile(where, file) for file in sorted(files, key=lambda file: -(file.size or 0))]
        self._reporter.stage(DownloadStage.VERIFYING)
        for part in parts:
            there = part.target.stat().st_size if part.target.exists() else await part.resume()
            self._reporter.have(there)
            if part.file.size is None:
                await self._take_unsized(there)
        self._reporter.stage(DownloadStage.DOWNLOADING)
        gate = asyncio.Semaphore(self._orders.parallel)
        tasks = [asyncio.create_task(self._fetch(part, gate)) for part in parts if not part.target.exists()]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(self, part: PartFile, gate: asyncio.Semaphore) -> None:
        async with gate:
            self._reporter.begin(part.file.path)
            await _patiently(lambda: self._fetch_rest(part), self._orders, part.file.path, lambda: part.size)
            if (problem := part.problem()) is not None:
                self._discard(part)
                raise mismatch(
                    f"{part.file.path} of {self._orders.source} {problem}, and was thrown away: download again; if "
                    "that does not help, it is damaged at its source or on the way"
                )
            self._digests[part.file.path] = await part.finish()
            self._reporter.end(part.file.path)

    async def _fetch_rest(self, part: PartFile) -> None:
        """Fetches from the current size on; bytes received before an interruption are kept."""
        if part.file.size is not None and part.size >= part.file.size:
            return
        try:
            async for chunk in paced(self._remote.read(part.file, part.size)):
                if part.file.size is None:
                    await self._take_unsized(len(chunk))
                await part.append(chunk)
                self._reporter.fetched(len(chunk))
                if part.file.size is not None and part.size > part.file.size:
                    raise Changed
            if part.file.size is not None and part.size < part.file.size:
                raise Interrupted("the connection ended early")
        except Changed:
            self._discard(part)
            raise mismatch(
                f"{part.file.path} of {self._orders.source} is not the file that was listed: it was changed meanwhile; "
                "download again"
            ) from None
        finally:
            await part.flush()

    async def _unpack(self, where: Path) -> None:
        name = self._orders.source
        self._reporter.stage(DownloadStage.VERIFYING)
        found = await in_thread(archive.opened, self._listing.files, where, name)
        chosen_files = self._needed(tuple(RemoteFile(path, member.size) for path, member in found.items()))
        chosen = {file.path: found[file.path] for file in chosen_files}
        size = sum(member.size for member in chosen.values() if member.info is not None)
        free = free_bytes(self._models.path)
        if size > free:
            raise no_space(f"{name} unpacks to {size} bytes, and {self._models.path} has {free}: make room")
        await in_thread(self._claim, size)
        try:
            await in_thread(archive.unpack, chosen, self._staging)
        except BaseException:
            for file in chosen:  # perhaps incomplete
                (self._staging / file).unlink(missing_ok=True)
            raise
        self._digests.clear()
        shutil.rmtree(where)

    async def _convert(self) -> None:
        if folders := pickled_weights.pickled_folders(self._staging):
            self._reporter.stage(DownloadStage.CONVERTING)
            for folder in folders:
                await in_thread(pickled_weights.convert, folder)
            self._digests.clear()
            if self._orders.kind is selection.SourceKind.ADAPTER:
                (self._staging / selection.SINGLE_FILE).rename(self._staging / selection.ADAPTER_WEIGHTS[0])

    async def _complete(self) -> Path:
        self._reporter.stage(DownloadStage.VERIFYING)
        for path in [path for path in self._staging.rglob(f"*{PART}") if path.is_file()]:
            path.unlink()
        self._name_gguf()
        every = [path for path in self._staging.rglob("*") if path.is_file()]
        paths = sorted(
            path for path in every if path.name != models_folder.MANIFEST and not path.name.startswith(".plan")
        )
        files = [await self._described(path) for path in paths]
        manifest = models_folder.ModelManifest(
            source=self._orders.source,
            revision=self._listing.revision,
            bytes=sum(file.size for file in files),
            files=files,
            downloaded_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self._models.complete(self._orders.source, manifest)
        self._reporter.stage(DownloadStage.DONE)
        folder = self._models.model(self._orders.source)
        facts = {
            "source": self._orders.source,
            "revision": manifest.revision,
            "folder": str(folder),
            "bytes": manifest.bytes,
            "fetched_bytes": self._reporter.fetched_bytes,
        }
        _log.info("the model is downloaded", extra=facts)
        return folder

    def _name_gguf(self) -> None:
        """Gives a GGUF file, or its parts, fixed names at the top, known to servers before the download."""
        for file in list(self._staging.rglob("*.gguf")):
            part = GGUF_PART.fullmatch(file.name)
            name = selection.GGUF_FILE if part is None else f"model-{part[2]}-of-{part[3]}.gguf"
            if (digest := self._digests.pop(file.relative_to(self._staging).as_posix(), None)) is not None:
                self._digests[name] = digest
            file.rename(self._staging / name)
            if file.parent != self._staging and not any(file.parent.iterdir()):
                file.parent.rmdir()

    async def _described(self, path: Path) -> models_folder.ManifestFile:
        name = path.relative_to(self._staging).as_posix()
        if (digest := self._digests.get(name)) is None:
            digest = await in_thread(_sha256, path)
        return models_folder.ManifestFile(path=name, size=path.stat().st_size, sha256=digest)


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write."""
    figures = os.statvfs(folder)
    return figures.f_bavail * figures.f_frsize


async def _patiently(
    action: Callable[[], Awaitable[Answer]],
    orders: DownloadOrders,
    what: str,
    progress: Callable[[], int] = lambda: 0,
    patience: float = math.inf,
) -> Answer:
    """Repeats until success, or until several tries in a row made no progress, or the next would begin after `patience`
    (seconds). Raises DownloadError."""
    failed, before, end = 0, progress(), time.monotonic() + patience
    while True:
        try:
            return await action()
        except Interrupted as error:
            if progress() > before:
                failed, before = 0, progress()
            failed += 1
            pause = min(orders.backoff_seconds * 2 ** (failed - 1), _LONGEST_PAUSE_SECONDS)
            pause = max(pause, error.after_seconds)
            if failed >= orders.attempts or time.monotonic() + pause > end:
                raise unreachable(
                    f"{what} of {orders.source} cannot be fetched, also not at try {failed} ({error}): check network, "
                    "proxy and mirror"
                ) from None
            _log.warning("trying again", extra={"file": what, "problem": str(error), "failed_tries": failed})
            await asyncio.sleep(pause)


def _sha256(path: Path) -> str:
    """Digest of a file; syncs the file to the disk."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
        os.fsync(file.fileno())
    return digest.hexdigest()
