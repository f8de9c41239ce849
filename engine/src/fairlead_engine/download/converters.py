"""What becomes of weights that the engine does not read as they come: a table of converters, applied at the end."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Protocol

from fairlead_engine.download.pickled_weights import PickledWeights
from fairlead_engine.download.remote import RemoteFile

READABLE = frozenset({".safetensors", ".gguf"})
"""Suffixes of weights that the engine reads."""


class Converter(Protocol):
    """Writes a downloaded folder anew, in a format that the engine reads."""

    suffixes: frozenset[str]
    """Of weights that it takes."""

    def applies(self, folder: Path) -> bool:
        """Whether the folder's weights are for it."""

    def convert(self, folder: Path) -> None:
        """In place; what is not served afterwards is deleted. Runs in a thread. Raises DownloadError."""


CONVERTERS: tuple[Converter, ...] = (PickledWeights(),)


def suffixes() -> frozenset[str]:
    """Of weights that can be read, or converted."""
    return READABLE.union(*(converter.suffixes for converter in CONVERTERS))


def extra_bytes(files: Iterable[RemoteFile]) -> int:
    """What conversion takes on the disk beside the files, until they are deleted."""
    converted = suffixes() - READABLE
    return sum(file.size or 0 for file in files if PurePosixPath(file.path).suffix in converted)
