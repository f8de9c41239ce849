"""Keeps compiled kernels from one start to the next, and checks the files' integrity.

Triton names compiled kernels by everything they depend on: its own version, the kernel's source, constants and types,
the kind of device. Its files appear whole or not at all: several engines may share a folder. Triton does not check
whether a file has changed since: after a full disk, or a truncated copy, every start would fail. Imported on CUDA
alone.
"""

import hashlib
import json
import logging
import os
from pathlib import Path

import torch
import triton
from triton import knobs
from triton.runtime.cache import FileCacheManager

from fairlead_engine.errors import ConfigError
from fairlead_engine.kernels.kept_choices import KeptChoices, sources_digest

logger = logging.getLogger(__name__)

_GROUP, _DIGEST = "__grp__", ".sha256"
"""Prefix of the file that lists an entry's files, and suffix of a file with a digest."""


def use_compile_cache(folder: str | None) -> None:
    """Has Triton keep compiled kernels in `folder`; None = TRITON_CACHE_DIR, or the home folder. Raises ConfigError."""
    if folder is not None:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError("compile_cache", f"{folder} cannot be made ({error.strerror})", "name another") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError("compile_cache", f"this user may not write to {folder}", "name another folder")
        knobs.cache.dir = folder
    knobs.cache.manager_class = CheckedCache


def kept_choices() -> KeptChoices:
    """Choices made by timing on a device like the current one, beside the compiled kernels."""
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, Triton {triton.__version__}"
    circumstances = f"{torch.cuda.get_device_name()}, {versions}, kernels {sources_digest()}"
    return KeptChoices(Path(knobs.cache.dir) / "fairlead-choices.json", circumstances)


class CheckedCache(FileCacheManager):  # type: ignore[misc]
    """One entry of the cache. A file changed since its writing does not count, and is compiled and written again. An
    entry's files are looked for in its own folder, even a moved one."""

    def put(self, data: bytes | str, filename: str, binary: bool = True) -> str:
        """Writes a file and its digest; returns the path."""
        path: str = super().put(data, filename, binary)
        super().put(_digest(data if isinstance(data, bytes) else str(data).encode()), filename + _DIGEST, binary=False)
        return path

    def get_file(self, filename: str) -> str | None:
        """The path of a present and unchanged file."""
        path, digest = Path(self._make_path(filename)), Path(self._make_path(filename + _DIGEST))
        try:
            is_whole = _digest(path.read_bytes()) == digest.read_text()
        except (OSError, UnicodeDecodeError):
            return None
        if not is_whole:
            logger.warning("%s is not what was written there: it is compiled again", path)
        return str(path) if is_whole else None

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The paths of an entry's files by name, if all are present and unchanged."""
        group = self.get_file(_GROUP + filename)
        if group is None:
            return None
        paths = {name: self.get_file(name) for name in json.loads(Path(group).read_text())["child_paths"]}
        found = {name: path for name, path in paths.items() if path is not None}
        return found if len(found) == len(paths) else None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
