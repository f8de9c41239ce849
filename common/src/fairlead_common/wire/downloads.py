"""Progress and failures of downloads: the downloader of the engine writes them, the operator reads them.

`GET /progress` of the downloader answers with a `DownloadProgress`; a failed download leaves a reason of
`DownloadFailure` and a sentence in the termination log of the pod. The downloader of adapters, beside a running engine,
answers `GET /sources` with a `SourcesReport`.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from fairlead_common.wire.messages import Count, NonNegative

PROGRESS_PATH = "/progress"
"""Path of the progress, where a download was given a port."""
DOWNLOAD_PORT = 8000
"""Port of the downloader in the pod of an engine: the port of the engine, which is free until the engine starts."""

SOURCES_PATH = "/sources"
"""Path of the report of a downloader of many sources."""
SOURCES_PORT = 8001
"""Port of the downloader beside an engine."""


class DownloadStage(StrEnum):
    """How far a download is."""

    WAITING = "waiting"
    """Another process downloads the same model into the same folder."""
    LISTING = "listing"
    """The source is asked what files there are."""
    DOWNLOADING = "downloading"
    VERIFYING = "verifying"
    """What an earlier run had fetched is read again."""
    CONVERTING = "converting"
    """Files are written in the format that the engine reads."""
    DONE = "done"


class DownloadFailure(StrEnum):
    """Why a model is not downloaded."""

    SOURCE_NOT_FOUND = "SourceNotFound"
    """The model does not exist, or has no servable files."""
    REVISION_NOT_FOUND = "RevisionNotFound"
    """The model exists, but not in the requested revision."""
    ACCESS_DENIED = "AccessDenied"
    """The credentials are missing, or not good for this model."""
    SOURCE_GATED = "SourceGated"
    """Its makers' terms are to be accepted first."""
    DIGEST_MISMATCH = "DigestMismatch"
    """The received bytes differ from the description of the source."""
    NO_SPACE = "NoSpace"
    """The models folder, or its size limit, has no room."""
    FOLDER_NOT_WRITABLE = "FolderNotWritable"
    """The user may not write to the models folder, or the file system lacks a needed feature."""
    SOURCE_UNREACHABLE = "SourceUnreachable"
    """Nobody answers, or only with errors, for longer than is waited."""
    SOURCE_NOT_SUPPORTED = "SourceNotSupported"
    """A scheme, or a form of a source, that is not downloaded."""
    CONVERSION_FAILED = "ConversionFailed"
    """The files came, and cannot be written as what the engine reads."""


class DownloadProgress(msgspec.Struct, kw_only=True, frozen=True):
    """One answer of `GET /progress`."""

    source: str
    stage: DownloadStage
    bytes: Count = 0
    """Bytes present, including bytes of earlier runs."""
    total_bytes: Count | None = None
    """None = not known yet."""
    bytes_per_second: Annotated[float, msgspec.Meta(ge=0.0, le=1e15)] | None = None
    """Fetched in the last few seconds; None = not known yet, until a second of fetching is over."""
    remaining_seconds: NonNegative | None = None
    """At the present rate; None = not known."""
    file: str | None = None
    """A file in progress; None = no file."""


class SourceState(msgspec.Struct, kw_only=True, frozen=True):
    """State of one source of several."""

    source: str
    folder: str | None = None
    """Folder of the complete download; None = not complete."""
    progress: DownloadProgress | None = None
    """Progress of the download under way; None = no download runs."""
    reason: str = ""
    """Why the last attempt failed: a DownloadFailure, with a sentence in `message`; empty = no failure."""
    message: str = ""


class SourcesReport(msgspec.Struct, kw_only=True, frozen=True):
    """One answer of `GET /sources`."""

    sources: list[SourceState]
