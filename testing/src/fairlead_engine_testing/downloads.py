"""Downloads in this process, what they leave, and archives for them."""

import asyncio
import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlead_engine.sources.downloader import DownloadOrders, download
from fairlead_engine.sources.models_folder import ModelsFolder
from fairlead_engine.sources.remote import DownloadError
from fairlead_engine.sources.reporting import Reporter


def fetch(source: str, models: Path, **settings: Any) -> dict[str, bytes]:
    """The files of a model that is downloaded, with hardly a pause between attempts."""
    settings = {"backoff_seconds": 0.001, "attempts": 6, **settings}
    return contents(asyncio.run(download(DownloadOrders(source, ModelsFolder(models), **settings), Reporter(source))))


def refusal(source: str, models: Path) -> DownloadError:
    """What a download fails with."""
    with pytest.raises(DownloadError) as caught:
        fetch(source, models)
    return caught.value


def contents(folder: Path) -> dict[str, bytes]:
    """A model's files by path."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".fairlead.json"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def staged_bytes(folder: Path) -> int:
    """Of files that are being fetched."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() and path.name != ".plan.json" else 0
        except FileNotFoundError:  # renamed meanwhile
            pass
    return total


def tar(members: Mapping[str, bytes], compression: str = "", links: Sequence[str] = ()) -> bytes:
    """An archive of symbolic links and files."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=f"w:{compression}") as archive:  # type: ignore[call-overload]
        for path in links:
            info = tarfile.TarInfo(path)
            info.type, info.linkname = tarfile.SYMTYPE, "/bin/sh"
            archive.addfile(info)
        for name, each in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(each)
            archive.addfile(info, io.BytesIO(each))
    return content.getvalue()
