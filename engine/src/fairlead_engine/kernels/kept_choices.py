"""Keeps choices made by timing in a file from one start to the next: replicas with a common file choose alike, and
once.

The file appears whole or not at all; an unreadable file means another timing. Of two engines that write at the same
time one may be forgotten, which costs another start some milliseconds.
"""

import json
import logging
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

logger = logging.getLogger(__name__)


class KeptChoices:
    """Whole numbers by name, in a file of JSON."""

    def __init__(self, path: Path, circumstances: str) -> None:
        """`circumstances`: all that choices depend on beside their names; entries of others are left alone."""
        self._path = path
        self._circumstances = circumstances

    def choose(self, name: str, choose: Callable[[], int]) -> int:
        """The kept choice `name`, or the result of `choose`, which is then kept."""
        key = f"{self._circumstances}, {name}"
        if (kept := self._read().get(key)) is not None:
            return kept
        chosen = choose()
        try:
            self._write({**self._read(), key: chosen})
        except OSError as error:
            logger.warning("choices by timing are not kept: %s", error)
        return chosen

    def _read(self) -> dict[str, int]:
        try:
            kept = json.loads(self._path.read_text())
            if not isinstance(kept, dict) or any(type(value) is not int for value in kept.values()):
                raise ValueError("not an object of whole numbers")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            logger.warning("%s cannot be read, and its choices are made again: %s", self._path, error)
            return {}
        return kept

    def _write(self, kept: dict[str, int]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_name(f".{self._path.name}-{uuid4().hex}")  # `tempfile`'s are for one user alone to read
        try:
            part.write_text(json.dumps(kept, indent=1, sort_keys=True))
            part.replace(self._path)
        finally:
            part.unlink(missing_ok=True)


def sources_digest() -> str:
    """Digest of all kernels' sources."""
    digest = sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
