"""The attention backends by name, and which one `auto` means."""

from collections.abc import Callable
from typing import Any

import torch

from fairlead_engine.kernels.attention.backend import AttentionBackend
from fairlead_engine.kernels.attention.block_tables import BlockTables
from fairlead_engine.kernels.attention.cpu_spans import CPUSpans

BACKENDS: dict[str, Callable[[], AttentionBackend[Any, Any]]] = {"cpu_spans": CPUSpans, "block_tables": BlockTables}
"""As `--attention-backend` spells them; all run on any device."""


def choose_backend_name(name: str, device: torch.device) -> str:
    """`name`, or what `auto` means on this device."""
    if name == "auto":
        return "cpu_spans" if device.type == "cpu" else "block_tables"
    return name
