"""The two files of a folder that PEFT has saved, whatever kind of adapter it is.

`peft_folder.py` and `soft_prompt.py` know what has to be in them.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from fairlead_engine.errors import AdapterError
from fairlead_engine.model.checkpoint import check_readable
from fairlead_engine.types.adapters import CONFIG_FILE, WEIGHTS_FILE

_PICKLE = "adapter_model.bin"
_MOST_CONFIG_BYTES = 2**20
_MOST_HEADER_BYTES = 2**20
"""Of weights: four times what two thousand tensors take. A million that hold no numbers took 20 s, in which no step was
computed, and 600 MiB."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""Formats that numbers of adapters may have."""


class PeftFiles:
    """Raises AdapterError for a configuration that is none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / CONFIG_FILE
        self.weights = folder / WEIGHTS_FILE
        self.fields = self._read(self._path)
        """Of `adapter_config.json`."""

    def wrong(self, field: str, problem: str) -> AdapterError:
        """An error that names the field."""
        return AdapterError(f"{self._path}: {field} {problem}")

    @contextmanager
    def weights_open(self) -> Iterator[Any]:
        """Within it the tensors can be read. Raises AdapterError where there are none, or they cannot be."""
        if not self.weights.is_file():
            has_pickle = (self._folder / _PICKLE).exists()
            problem = f"{_PICKLE} may run code when it is read and is not; save the adapter as safetensors"
            raise AdapterError(f"{self._folder} has no {WEIGHTS_FILE}" + (f": {problem}" if has_pickle else ""))
        try:
            check_readable(self.weights)
            self._check_header()
            with safe_open(self.weights, framework="pt") as file:
                yield file
        except (SafetensorError, OSError) as error:
            raise AdapterError(f"{self.weights} cannot be read as safetensors ({error})") from error

    def _check_header(self) -> None:
        with self.weights.open("rb") as file:
            num_bytes = int.from_bytes(file.read(8), "little")
        if num_bytes > _MOST_HEADER_BYTES:
            told = f"its header is said to have {num_bytes:,} bytes, and at most {_MOST_HEADER_BYTES:,} are read"
            raise AdapterError(f"{self.weights} cannot be read as safetensors ({told})")

    def _read(self, path: Path) -> dict[str, Any]:
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            raise AdapterError(f"{path} is no file; give a folder that PEFT has saved")
        try:
            with path.open("rb") as file:
                text = file.read(_MOST_CONFIG_BYTES + 1)
            fields = json.loads(text) if len(text) <= _MOST_CONFIG_BYTES else None
        except (OSError, ValueError, RecursionError) as error:
            raise AdapterError(f"{path} cannot be read as JSON ({error}); give a folder that PEFT has saved") from error
        if not isinstance(fields, dict):
            raise AdapterError(f"{path} must hold a JSON object of at most {_MOST_CONFIG_BYTES} bytes")
        return fields
