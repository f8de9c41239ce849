"""What becomes of weights that the engine does not read as they come: a table of converters, applied at the end."""

from pathlib import Path
from typing import Protocol

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


CONVERTERS: tuple[Converter, ...] = ()


def suffixes() -> frozenset[str]:
    """Of weights that can be read, or converted."""
    return READABLE.union(*(converter.suffixes for converter in CONVERTERS))
