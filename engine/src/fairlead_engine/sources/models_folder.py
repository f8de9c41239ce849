"""A folder of downloaded models: places, holders, and removal for room.

    MODELS/NAME/                      a complete model, with `.fairlead.json`
    MODELS/.downloads/NAME/           files of a running download
    MODELS/.downloads/NAME.lock       held (flock) by the downloading process
    MODELS/.downloads/removed-…/      to be removed

An engine holds a shared flock on the manifest of the served model, which a read-only mount allows; a held model is not
removed. Locks end with the process, even when killed. Knows no source and no network.
"""

import errno
import fcntl
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from fairlead_common.wire.downloads import DownloadFailure
from fairlead_common.wire.model_sources import folder_name
from fairlead_engine.sources.remote import DownloadError, no_space

MANIFEST = ".fairlead.json"
JUST_USED_SECONDS = 600.0
"""A model used this recently is not removed: an engine may be about to start."""
_DOWNLOADS = ".downloads"
_PLAN = ".plan.json"
_REMOVED = "removed-"
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF})
"""flock's errors for file systems without locks, or on NFS for read-only access."""

_log = logging.getLogger("fairlead_engine.sources")


class ManifestFile(msgspec.Struct, kw_only=True, frozen=True):
    path: str
    size: int
    sha256: str


class ModelManifest(msgspec.Struct, kw_only=True, frozen=True):
    """Content and source of a downloaded folder: `.fairlead.json`."""

    source: str
    revision: str
    bytes: int
    files: list[ManifestFile]
    downloaded_at: str
    """UTC, ISO 8601."""


class DownloadPlan(msgspec.Struct, kw_only=True, frozen=True):
    """Future content of an unfinished download: other processes count the bytes as taken."""

    source: str
    revision: str
    bytes: int


Known = TypeVar("Known", ModelManifest, DownloadPlan)


def hold_model(folder: Path) -> BinaryIO | None:
    """Locks a downloaded model for an engine: nobody removes it until the file is closed, or the process ends. None =
    the folder is not a downloaded model."""
    try:
        file = (folder / MANIFEST).open("rb")
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _log.warning("no locks (flock) there: the model is served without being held", extra={"folder": str(folder)})
    return file


class ModelsFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def model(self, source: str) -> Path:
        """Folder of a source's model, also before the download."""
        return self.path / folder_name(source)

    def staging(self, source: str) -> Path:
        return self.path / _DOWNLOADS / folder_name(source)

    def manifest(self, source: str) -> ModelManifest | None:
        """Manifest of a complete model; None = there is none."""
        return read_manifest(self.model(source))

    def prepare(self) -> None:
        """Raises DownloadError where nothing can be written."""
        try:
            (self.path / _DOWNLOADS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise not_writable(self.path, error) from error

    @contextmanager
    def try_lock(self, source: str) -> Iterator[bool]:
        """Whether this process alone may download the source, within the block. Raises DownloadError for a file system
        without locks."""
        try:
            file = (self.path / _DOWNLOADS / f"{folder_name(source)}.lock").open("ab")
        except OSError as error:
            raise not_writable(self.path, error) from error
        with file:
            if (locked := _try_flock(file)) is None:
                raise DownloadError(
                    DownloadFailure.FOLDER_NOT_WRITABLE,
                    f"the file system of {self.path} has no locks (flock), without which two would write one file: "
                    "mount it with locks (NFS: version 4, or local_lock=flock), or name another models folder",
                )
            yield locked

    def plan(self, source: str, plan: DownloadPlan) -> None:
        (self.staging(source) / _PLAN).write_bytes(msgspec.json.encode(plan))

    def planned(self, source: str) -> DownloadPlan | None:
        return _read(self.staging(source) / _PLAN, DownloadPlan)

    def complete(self, source: str, manifest: ModelManifest) -> None:
        """Moves the staged model into place, in one step; a former model is removed once nobody holds the files."""
        staging, model = self.staging(source), self.model(source)
        (staging / _PLAN).unlink(missing_ok=True)
        (staging / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        for path in (staging / MANIFEST, staging):
            _sync(path)
        former = self._aside(model) if model.exists() else None
        staging.rename(model)
        _sync(self.path)
        if former is not None:
            _remove_unheld(former)

    def go_on(self, source: str) -> None:
        """Moves a killed run's complete model into place; needs the lock, and any former model aside."""
        staging, model = self.staging(source), self.model(source)
        if not model.exists() and not (staging / _PLAN).exists() and read_manifest(staging) is not None:
            staging.rename(model)

    def models(self) -> dict[Path, ModelManifest]:
        """All complete models, the least recently used first."""
        found = {path: manifest for path in _folders(self.path) if (manifest := read_manifest(path)) is not None}
        return dict(sorted(found.items(), key=lambda item: last_used(item[0])))

    def unfinished(self) -> Iterator[tuple[Path, int]]:
        """Incomplete downloads, each with the size, planned bytes included."""
        for path in _folders(self.path / _DOWNLOADS):
            plan = _read(path / _PLAN, DownloadPlan)
            yield path, max(_size(path), plan.bytes if plan else 0)

    def used_bytes(self, without: str | None = None) -> int:
        """Size of all models, complete or not; `without`: a source whose unfinished download is left out."""
        staged = sum(size for path, size in self.unfinished() if without is None or path != self.staging(without))
        return sum(manifest.bytes for manifest in self.models().values()) + staged

    def make_room(self, num_bytes: int, limit: int, source: str) -> list[Path]:
        """Removes the least recently used models without a holder, until `num_bytes` more for `source` are within
        `limit`. Returns their folders. Raises DownloadError, having removed nothing, if the room cannot be made."""
        with self._alone():
            excess = self.used_bytes(without=source) + num_bytes - limit
            goes = [path for path, _ in self.unfinished() if path != self.staging(source) and self._is_abandoned(path)]
            freed = sum(size for path, size in self.unfinished() if path in goes)
            if excess <= 0:
                return []
            for path, manifest in self.models().items():
                if freed >= excess:
                    break
                if path != self.model(source) and not is_held(path):
                    goes.append(path)
                    freed += manifest.bytes
            if freed < excess:
                raise no_space(
                    f"{num_bytes} bytes more do not fit the size limit of {limit} bytes in {self.path}, where "
                    f"{self.used_bytes(without=source)} are taken and {freed} of them are not in use: raise the limit"
                )
            return [path for path in goes if self.remove(path)]

    def remove(self, path: Path) -> bool:
        """Removes a model or an unfinished download; False = somebody holds the folder."""
        if path.parent == self.path and is_held(path, just_used_seconds=0.0):
            return False
        if path.parent != self.path and not path.name.startswith(_REMOVED) and not self._is_abandoned(path):
            return False
        return _remove_unheld(self._aside(path))

    def sweep(self) -> list[Path]:
        """Removes abandoned downloads and replaced models."""
        return [path for path, _ in list(self.unfinished()) if self.remove(path)]

    def _aside(self, path: Path) -> Path:
        """Renames before the removal: nobody finds half of a model."""
        target = self.path / _DOWNLOADS / f"{_REMOVED}{uuid.uuid4().hex[:12]}"
        path.rename(target)
        return target

    def _is_abandoned(self, staging: Path) -> bool:
        if staging.name.startswith(_REMOVED):
            return True
        return _is_free(staging.with_name(f"{staging.name}.lock"))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock of the process that decides about removals."""
        with (self.path / _DOWNLOADS / "room.lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                raise not_writable(self.path, error) from error


def read_manifest(folder: Path) -> ModelManifest | None:
    """Manifest of a folder; None = no complete download."""
    return _read(folder / MANIFEST, ModelManifest)


def touch(folder: Path) -> None:
    """Notes that a model is used."""
    try:
        os.utime(folder / MANIFEST)
    except OSError:  # on a mount that is read-only, eviction goes by when it was downloaded
        pass


def last_used(folder: Path) -> float:
    """Seconds since the epoch."""
    try:
        return (folder / MANIFEST).stat().st_mtime
    except OSError:
        return 0.0


def is_held(folder: Path, just_used_seconds: float = JUST_USED_SECONDS) -> bool:
    """Whether an engine serves the model, or is likely about to."""
    if time.time() - last_used(folder) < just_used_seconds:
        return True
    return not _is_free(folder / MANIFEST)


def _remove_unheld(path: Path) -> bool:
    """Deletes a folder that lies aside; a held folder stays until the next sweep."""
    if (path / MANIFEST).exists() and is_held(path, just_used_seconds=0.0):
        return False
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def not_writable(path: Path, error: OSError) -> DownloadError:
    """Error for a models folder without write access."""
    return DownloadError(
        DownloadFailure.FOLDER_NOT_WRITABLE,
        f"{path} cannot be written ({error.strerror}): let this user (id {os.geteuid()}) write there, or name another "
        "models folder",
    )


def _is_free(path: Path) -> bool:
    """Whether nobody holds the file. An unknown state counts as held."""
    try:
        # NFS wants whoever locks a file alone to have it open for writing.
        with path.open("r+b" if os.access(path, os.W_OK) else "rb") as file:
            return _try_flock(file) or False
    except FileNotFoundError:
        return True


def _try_flock(file: BinaryIO) -> bool | None:
    """Whether the lock was free, and is ours until the file is closed; None = no locks on this file system."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(each for each in path.iterdir() if each.is_dir() and each.name != _DOWNLOADS)
    except OSError:
        return []


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # removed meanwhile
            pass
    return total


def _read(path: Path, kind: type[Known]) -> Known | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
