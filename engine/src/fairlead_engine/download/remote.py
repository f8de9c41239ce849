"""What every scheme of sources has to offer: a listing, and bytes of a file from anywhere on. The rest, which is the
same for all (what is fetched, in parallel, again, checked and put in its place), is `downloader.py`."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fairlead_engine.errors import EngineError
from fairlead_protocol.downloads import DownloadFailure


class DownloadError(EngineError):
    """A model is not downloaded; the message says what to do. It quotes neither credentials nor signed addresses."""

    def __init__(self, reason: DownloadFailure, message: str) -> None:
        super().__init__(message, reason=DownloadFailure(reason))


class Interrupted(Exception):
    """A connection broke, or a server asks for patience: what was being done is worth another try from where it is."""

    def __init__(self, message: str, *, after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.after_seconds = after_seconds
        """The server's own wish; 0 = none."""


class Changed(Exception):
    """A file is not the one that was listed: it is to be fetched from its start, of a fresh listing."""


class Packing(StrEnum):
    """What a tar is, whose members are a part of a model."""

    ARCHIVE = "archive"
    """Made of a model: links and devices in it are refused."""
    LAYER = "layer"
    """Of an image's file system: what is no plain file is passed over, and it may take away what earlier ones have."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file that a source holds."""

    path: str
    """Relative to the model's folder, with `/`."""
    size: int | None = None
    """Bytes; None = only its end will tell."""
    sha256: str | None = None
    """Hex; None = the source does not say."""
    git_blob: str | None = None
    """Hex, the SHA-1 by which git knows the content; None = the source does not say."""
    packing: Packing | None = None
    """None = the file is itself a part of the model."""


@dataclass(frozen=True, slots=True)
class SourceListing:
    """What a source holds at one revision."""

    revision: str
    """That cannot move: a commit, a digest, or what stands for one."""
    files: tuple[RemoteFile, ...]
    """No two with one path; of several within archives, the last counts."""

    @property
    def is_packed(self) -> bool:
        """Whether what the model has is known only once archives are here."""
        return any(file.packing is not None for file in self.files)


class Remote(Protocol):
    """One model at one source."""

    async def open(self) -> SourceListing:
        """Connects, and lists. Raises DownloadError, or Interrupted where another try may help."""

    def read(self, file: RemoteFile, start: int) -> AsyncIterator[bytes]:
        """Bytes of a listed file from `start` on. Raises DownloadError, Interrupted, Changed."""

    async def close(self) -> None:
        """Ends what is open."""
