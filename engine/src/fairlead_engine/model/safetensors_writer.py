"""Writes a checkpoint's tensors to safetensors files of a few gigabytes, with an index."""

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from fairlead_engine.model.checkpoint import INDEX_FILE, SINGLE_FILE

MOST_BYTES = 4 * 2**30
"""Of a file."""


class SafetensorsWriter:
    """Keeps tensors until a file is full. All methods raise OSError for a failed write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, Tensor] = {}
        self._num_bytes = 0
        self._total = 0
        self._file_of: list[list[str]] = []

    @property
    def names(self) -> set[str]:
        return {name for names in self._file_of for name in names} | self._kept.keys()

    def add(self, name: str, tensor: Tensor) -> None:
        """Adds tensors; no two may share memory."""
        self._kept[name] = tensor.cpu().contiguous()
        self._num_bytes += tensor.nbytes
        self._total += tensor.nbytes
        if self._num_bytes >= MOST_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes and drops the tensors that are kept."""
        if self._kept:
            part = self._part(len(self._file_of))
            part.touch()
            mode = part.stat().st_mode  # as any file of this process; safetensors lets nobody else read its own
            save_file(self._kept, part, metadata={"format": "pt"})
            part.chmod(mode)
            self._file_of.append(list(self._kept))
            self._kept, self._num_bytes = {}, 0

    def finish(self) -> None:
        """Gives the files their names; several get an index."""
        self.flush()
        count = len(self._file_of)
        if count == 1:
            self._part(0).rename(self._folder / SINGLE_FILE)
            return
        weight_map: dict[str, str] = {}
        for index, names in enumerate(self._file_of):
            file = f"model-{index + 1:05}-of-{count:05}.safetensors"
            self._part(index).rename(self._folder / file)
            weight_map |= dict.fromkeys(names, file)
        written = {"metadata": {"total_size": self._total}, "weight_map": weight_map}
        (self._folder / INDEX_FILE).write_text(json.dumps(written, indent=2), encoding="utf-8")

    def _part(self, index: int) -> Path:
        return self._folder / f"part-{index}.safetensors"
