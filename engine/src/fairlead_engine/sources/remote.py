"""The interface of a scheme of sources: a listing, and the bytes of a file from any offset on; and the class of each
scheme. The part common to all schemes is `downloader.py`."""

import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib import import_module
from typing import Protocol, cast

from fairlead_common.wire.downloads import DownloadFailure
from fairlead_common.wire.model_sources import Source
from fairlead_engine.errors import EngineError


class DownloadError(EngineError):
    """A model is not downloaded; the message has a remedy, and neither credentials nor signed addresses."""

    def __init__(self, reason: DownloadFailure, message: str) -> None:
        super().__init__(message, reason=DownloadFailure(reason))


unsupported = partial(DownloadError, DownloadFailure.SOURCE_NOT_SUPPORTED)
not_found = partial(DownloadError, DownloadFailure.SOURCE_NOT_FOUND)
unreachable = partial(DownloadError, DownloadFailure.SOURCE_UNREACHABLE)
denied = partial(DownloadError, DownloadFailure.ACCESS_DENIED)
mismatch = partial(DownloadError, DownloadFailure.DIGEST_MISMATCH)
no_space = partial(DownloadError, DownloadFailure.NO_SPACE)


class Interrupted(Exception):
    """A connection broke, or a server asks for patience: another try may continue from the same place."""

    def __init__(self, message: str, *, after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.after_seconds = after_seconds
        """The server's wish; 0 = none."""


class Changed(Exception):
    """A file differs from the listing: fetch from the start, after a new listing."""


class Packing(StrEnum):
    """Kind of a tar whose members are parts of a model."""

    ARCHIVE = "archive"
    """Made of a model: links and devices in it are refused."""
    LAYER = "layer"
    """Of an image's file system: special files are skipped, and files of earlier layers may be removed."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file that a source holds."""

    path: str
    """Relative to the model's folder, with `/`."""
    size: int | None = None
    """Bytes; None = unknown before the end."""
    sha256: str | None = None
    """Hex; None = the source does not say."""
    git_blob: str | None = None
    """Hex SHA-1 of git's blob; None = unknown."""
    packing: Packing | None = None
    """None = the file is a part of the model."""


@dataclass(frozen=True, slots=True)
class SourceListing:
    """What a source holds at one revision."""

    revision: str
    """An immutable revision: a commit, a digest, or a substitute for one."""
    files: tuple[RemoteFile, ...]
    """Files with distinct paths; of equal paths within archives, the last counts."""

    @property
    def is_packed(self) -> bool:
        """Whether the model's files are known only after archives are fetched."""
        return any(file.packing is not None for file in self.files)


class Remote(Protocol):
    """One model at one source."""

    async def open(self) -> SourceListing:
        """Connects, and lists. Raises DownloadError, or Interrupted where another try may help."""

    def read(self, file: RemoteFile, start: int) -> AsyncIterator[bytes]:
        """Bytes of a listed file from `start` on. Raises DownloadError, Interrupted, Changed."""

    async def close(self) -> None:
        """Ends what is open."""


REMOTES: dict[str, str] = {
    "hf": "fairlead_engine.sources.hub:HubRemote",
    "https": "fairlead_engine.sources.web:WebRemote",
    "s3": "fairlead_engine.sources.buckets:BucketRemote",
    "gs": "fairlead_engine.sources.buckets:BucketRemote",
    "az": "fairlead_engine.sources.buckets:BucketRemote",
    "oci": "fairlead_engine.sources.oci_registry:OciRemote",
}
"""Scheme → `MODULE:CLASS`; the class is called with the `Source`, and takes credentials from the environment."""


def remote_of(source: Source) -> Remote:
    """The remote of a source. Raises DownloadError where its scheme has none."""
    if (place := REMOTES.get(source.scheme)) is None:
        known = ", ".join(f"{scheme}://" for scheme in REMOTES)
        raise unsupported(f"{source.scheme}:// is not downloaded; these are: {known}")
    module, _, name = place.partition(":")
    return cast(Callable[[Source], Remote], getattr(import_module(module), name))(source)


SUMS = "SHA256SUMS"
LARGEST_LIST = 64 << 20
"""Bytes of sums, or of an index: the largest models need a few."""
_LINE = re.compile(r"([0-9a-fA-F]{64})[ \t]+\*?(?:\./)?(.+)")


def read_sums(text: str) -> dict[str, str]:
    """File → hex digest, from sha256sum's output."""
    found = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return {match[2]: match[1].lower() for match in found if match}


def revision_of(files: Iterable[RemoteFile], etags: Mapping[str, str]) -> str:
    """A substitute for a revision, which changes with any file. `etags`: by path."""
    facts = [(file.path, file.size, file.sha256, etags.get(file.path)) for file in files]
    return "sha256:" + hashlib.sha256(json.dumps(facts).encode()).hexdigest()
