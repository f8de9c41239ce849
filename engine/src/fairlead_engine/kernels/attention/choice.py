"""The attention backends by name, and which one `auto` means."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from fairlead_engine.errors import ConfigError
from fairlead_engine.kernels.attention.backend import AttentionBackend
from fairlead_engine.kernels.attention.block_tables import BlockTables
from fairlead_engine.kernels.attention.cpu_spans import CPUSpans


def _triton() -> AttentionBackend[Any, Any]:
    from fairlead_engine.kernels.attention.triton_paged import TritonPaged  # Triton is needed on CUDA alone

    return TritonPaged()


BACKENDS: dict[str, Callable[[], AttentionBackend[Any, Any]]] = {
    "cpu_spans": CPUSpans,
    "block_tables": BlockTables,
    "triton": _triton,
}
"""As `--attention-backend` spells them; all run on any device, but `triton` on a CPU in Triton's interpreter only."""


def choose_backend_name(name: str, device: torch.device) -> str:
    """`name`, or what `auto` means on this device. Raises ConfigError for one that cannot run here."""
    has_triton = find_spec("triton") is not None
    if name == "auto":
        return "cpu_spans" if device.type == "cpu" else "triton" if has_triton else "block_tables"
    if name == "triton" and device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError("attention_backend", "triton runs on CUDA alone", "choose auto, cpu_spans or block_tables")
    if name == "triton" and not has_triton:
        raise ConfigError("attention_backend", "Triton is not installed", "pip install 'fairlead-engine[cuda]'")
    return name
