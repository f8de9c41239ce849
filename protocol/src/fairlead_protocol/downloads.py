"""What a running download says of itself, and why one fails: the engine's downloader writes it, the operator reads it.

`GET /progress` of the downloader answers with a `DownloadProgress`; one that fails leaves a reason of `DownloadFailure`
and a sentence in the pod's termination log. What downloads adapters beside an engine that runs answers `GET /sources`
with a `SourcesReport`.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from fairlead_protocol.messages import Count, NonNegative

PROGRESS_PATH = "/progress"
"""Where a download that was given a port answers."""
DOWNLOAD_PORT = 8000
"""Of the downloader in an engine's pod: the engine's own, which is free until it starts."""

SOURCES_PATH = "/sources"
"""Where a downloader of many sources answers."""
SOURCES_PORT = 8001
"""Of the one in an engine's pod, beside the engine."""


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
    """There is no such model, or nothing in it that can be served."""
    REVISION_NOT_FOUND = "RevisionNotFound"
    """The model is there, but not this revision of it."""
    ACCESS_DENIED = "AccessDenied"
    """The credentials are missing, or not good for this model."""
    SOURCE_GATED = "SourceGated"
    """Its makers' terms are to be accepted first."""
    DIGEST_MISMATCH = "DigestMismatch"
    """What came is not what the source says that it holds."""
    NO_SPACE = "NoSpace"
    """The models folder, or its size limit, has no room."""
    FOLDER_NOT_WRITABLE = "FolderNotWritable"
    """This user may not write to the models folder, or its file system cannot do what is wanted of it."""
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
    """That are there, with what earlier runs had fetched."""
    total_bytes: Count | None = None
    """None = not known yet."""
    bytes_per_second: Annotated[float, msgspec.Meta(ge=0.0, le=1e15)] = 0.0
    """Fetched in the last few seconds."""
    remaining_seconds: NonNegative | None = None
    """At that rate; None = not known."""
    file: str | None = None
    """One that is fetched at the moment."""


class SourceState(msgspec.Struct, kw_only=True, frozen=True):
    """How it is with one source of several."""

    source: str
    folder: str | None = None
    """Where it is, whole; None = it is not there yet."""
    progress: DownloadProgress | None = None
    """Of the download under way."""
    reason: str = ""
    """Why the last attempt failed: a DownloadFailure, with a sentence in `message`; empty = none has."""
    message: str = ""


class SourcesReport(msgspec.Struct, kw_only=True, frozen=True):
    """One answer of `GET /sources`."""

    sources: list[SourceState]
