"""The attention backends by name, and the choice behind `auto`."""

import os
from collections.abc import Callable
from typing import Any

import torch

from fairlead_engine.errors import ConfigError
from fairlead_engine.kernels.attention.backend import AttentionBackend
from fairlead_engine.kernels.attention.block_tables import BlockTables
from fairlead_engine.kernels.attention.cpu_spans import CPUSpans
from fairlead_engine.kernels.attention.stored_heads import KV_DTYPES
from fairlead_engine.kernels.dispatch import triton_lacks


def _triton() -> AttentionBackend[Any, Any]:
    from fairlead_engine.kernels.attention.triton_paged import TritonPaged  # Triton is needed on CUDA alone

    return TritonPaged()


_FP8_CAPABILITY = (8, 9)
"""Least with which Triton computes with 8-bit floats (e4m3)."""

BACKENDS: dict[str, Callable[[], AttentionBackend[Any, Any]]] = {
    "cpu_spans": CPUSpans,
    "block_tables": BlockTables,
    "triton": _triton,
}
"""By their names in `--attention-backend`; all run on any device, `triton` on a CPU in its interpreter only."""


def choose_backend_name(name: str, device: torch.device) -> str:
    """`name`, or what `auto` means on this device. Raises ConfigError for one that cannot run here."""
    lacking = triton_lacks()
    if name == "auto":
        return "cpu_spans" if device.type == "cpu" else "triton" if lacking is None else "block_tables"
    if name == "triton" and device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError("attention_backend", "triton runs on CUDA alone", "choose auto, cpu_spans or block_tables")
    if name == "triton" and lacking is not None:
        raise ConfigError("attention_backend", lacking)
    return name


def choose_kv_dtype(name: str, backend: str, device: torch.device) -> torch.dtype | None:
    """The cache's format of keys and values with that name; None = activations'. Raises ConfigError for a format that
    the backend cannot read on this device."""
    if name == "fp8" and backend == "triton" and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < _FP8_CAPABILITY:
            raise ConfigError(
                "kv_cache_dtype",
                f"fp8 needs a GPU of compute capability 8.9, and this one has {major}.{minor}",
                "choose int8, which every GPU reads, or attention-backend block_tables",
            )
    return KV_DTYPES[name]
