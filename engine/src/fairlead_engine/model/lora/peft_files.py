"""The two files of a folder that PEFT has saved, for all kinds of adapters; and soft prompts.

A soft prompt, of `PROMPT_TUNING` or `P_TUNING`, is embeddings before every prompt. Both kinds save the result of
training as `prompt_embeddings` [virtual tokens, hidden]. Sources: prompt tuning (arXiv 2104.08691), P-tuning (arXiv
2103.10385). Low-rank adapters are read in `peft_folder.py`.
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
from fairlead_engine.model.lora.adapter_slots import AdapterSlots, HostAdapter
from fairlead_engine.types.adapters import CONFIG_FILE, WEIGHTS_FILE

_PICKLE = "adapter_model.bin"
_MOST_CONFIG_BYTES = 2**20
_MOST_HEADER_BYTES = 2**20
"""Of weights: four times the header of two thousand tensors. A million tensors without numbers took 20 s, during which
steps stood still, and 600 MiB."""
_TENSOR_BYTES = 512
"""Of the header, for each tensor that the model may have, where these are many."""
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
    def weights_open(self, num_tensors: int = 0) -> Iterator[Any]:
        """Context in which the tensors can be read, of which there may be so many. Raises AdapterError for missing or
        unreadable weights."""
        if not self.weights.is_file():
            has_pickle = (self._folder / _PICKLE).exists()
            problem = f"{_PICKLE} may run code when it is read and is not; save the adapter as safetensors"
            raise AdapterError(f"{self._folder} has no {WEIGHTS_FILE}" + (f": {problem}" if has_pickle else ""))
        try:
            check_readable(self.weights)
            self._check_header(max(_MOST_HEADER_BYTES, num_tensors * _TENSOR_BYTES))
            with safe_open(self.weights, framework="pt") as file:
                yield file
        except (SafetensorError, OSError) as error:
            raise AdapterError(f"{self.weights} cannot be read as safetensors ({error})") from error

    def _check_header(self, most_bytes: int) -> None:
        with self.weights.open("rb") as file:
            num_bytes = int.from_bytes(file.read(8), "little")
        if num_bytes > most_bytes:
            told = f"its header is said to have {num_bytes:,} bytes, and at most {most_bytes:,} are read"
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


SOFT_PROMPTS = ("PROMPT_TUNING", "P_TUNING")
"""What `peft_type` calls them."""
_TENSOR = "prompt_embeddings"
_HARMLESS = frozenset(
    {
        "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "task_type",
        "inference_mode", "num_virtual_tokens", "token_dim", "num_transformer_submodules", "num_attention_heads",
        "num_layers", "prompt_tuning_init", "prompt_tuning_init_text", "tokenizer_name_or_path", "tokenizer_kwargs",
        "encoder_reparameterization_type", "encoder_hidden_size", "encoder_num_layers", "encoder_dropout",
    }
)  # fmt: skip
"""Fields with an effect here, or about training only."""
_GENERATES = (None, "CAUSAL_LM")


def read_soft_prompt(files: PeftFiles, slots: AdapterSlots) -> HostAdapter:
    """The prompt, whole on every rank. Raises AdapterError, naming file and field or tensor."""
    fields = files.fields
    for name, value in fields.items():
        if name not in _HARMLESS and value not in (None, False, [], {}, ""):
            raise files.wrong(name, f"is {value!r}, which this engine does not know")
    if fields.get("task_type") not in _GENERATES:
        raise files.wrong("task_type", f"is {fields['task_type']!r}; only soft prompts of CAUSAL_LM are served")
    if fields.get("num_transformer_submodules") not in (None, 1):
        raise files.wrong("num_transformer_submodules", "must be 1: the model is one decoder")
    number = fields.get("num_virtual_tokens")
    if type(number) is not int or number < 1:
        raise files.wrong("num_virtual_tokens", f"must be a whole number above 0, not {number!r}")
    if fields.get("token_dim") not in (None, slots.hidden_size):
        problem = f"is {fields['token_dim']!r}, and embeddings of this model have {slots.hidden_size} numbers"
        raise files.wrong("token_dim", problem)
    with files.weights_open() as file, torch.inference_mode():
        if [*file.keys()] != [_TENSOR]:
            raise AdapterError(f"{files.weights} must hold one tensor, {_TENSOR}, and has {sorted(file.keys())}")
        shape = file.get_slice(_TENSOR).get_shape()
        if shape != [number, slots.hidden_size]:
            problem = f"should have shape {[number, slots.hidden_size]}, but has {shape}"
            raise AdapterError(f"{files.weights}: tensor {_TENSOR} {problem}")
        tensor = file.get_tensor(_TENSOR)
        if tensor.dtype not in FLOATS:
            held = str(tensor.dtype).removeprefix("torch.")
            raise AdapterError(f"{files.weights}: tensor {_TENSOR} holds {held}, no floats")
        prompt = tensor.to(slots.dtype).contiguous()
        if not bool(prompt.isfinite().all()):
            raise AdapterError(f"{files.weights}: {_TENSOR} holds what is no finite number in {slots.dtype}")
    return HostAdapter([], prompt.pin_memory() if slots.device.type == "cuda" else prompt)
