"""What every scheme of sources has to offer: a listing, and bytes of a file from anywhere on. The rest, which is the
same for all (what is fetched, in parallel, again, checked and put in its place), is `downloader.py`."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source holds at one revision."""

    revision: str
    """That cannot move: a commit, a digest, or what stands for one."""
    files: tuple[RemoteFile, ...]
    archive: bool = False
    """Whether the one file is a tar whose members are the model."""


class Remote(Protocol):
    """One model at one source."""

    async def open(self) -> Listing:
        """Connects, and lists. Raises DownloadError, or Interrupted where another try may help."""

    def read(self, file: RemoteFile, start: int) -> AsyncIterator[bytes]:
        """Bytes of a listed file from `start` on. Raises DownloadError, Interrupted, Changed."""

    async def close(self) -> None:
        """Ends what is open."""
