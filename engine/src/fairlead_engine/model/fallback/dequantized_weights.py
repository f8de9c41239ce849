"""Weights of a quantised checkpoint as floats, by this engine's readers, for transformers to load.

Shapes come from the tensors themselves: transformers may name and divide layers otherwise than the checkpoint does.
"""

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairlead_common.models.quantized_checkpoints import (
    AwqFormat,
    CompressedFormat,
    Fp8Format,
    GptqFormat,
    StoredFormat,
)
from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.checkpoint import FLOATS, VALUES_OF_WEIGHTS, Checkpoint
from fairlead_engine.model.quantization.stored import choose_source

READABLE = (AwqFormat, CompressedFormat, Fp8Format, GptqFormat)
"""Formats whose layers are stored one by one."""

logger = logging.getLogger(__name__)


def read_floats(folder: Path, stored: StoredFormat, dtype: torch.dtype, network: Any) -> dict[str, Tensor]:
    """All tensors of the checkpoint, on the host, in `dtype`; `network`: one of the model, for the names
    and kinds of its modules. Raises ModelLoadError, naming a tensor that does not fit."""
    source, found = choose_source(None, stored), dict[str, Tensor]()
    wanted = {name for name, _ in network.named_parameters()}
    with torch.no_grad(), Checkpoint(folder, dtype, torch.device("cpu")) as checkpoint:
        layers = {
            name.rpartition(".")[0] for name in checkpoint.names() if name.rpartition(".")[2] in VALUES_OF_WEIGHTS
        }
        layers -= {name for name, module in network.named_modules() if not isinstance(module, nn.Linear)}
        quantised = [layer for layer in sorted(layers) if source.format_of(checkpoint, layer, False) is not None]
        for layer in quantised:
            shape = _shape(checkpoint, layer, stored)
            weight = source.read(checkpoint, layer, shape, slice(0, shape[0]))
            found[f"{layer}.weight"] = weight.dequantized().to(dtype)
            if f"{layer}.bias" in wanted and checkpoint.has(f"{layer}.bias"):  # which may be all zeros
                found[f"{layer}.bias"] = checkpoint.stored(f"{layer}.bias", checkpoint.shape(f"{layer}.bias")).to(dtype)
        for name in checkpoint.unread():
            tensor = checkpoint.raw(name)
            if name.endswith(".weight") and tensor.dtype not in FLOATS:
                held = str(tensor.dtype).removeprefix("torch.")
                raise _invalid(f"tensor {name} holds {held}, and quantization_config says of no such weights")
            found[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    num_bytes = sum(tensor.nbytes for tensor in found.values())
    logger.warning(
        "%d layers are stored quantised and become %s, as transformers computes them: all weights take %.1f GB",
        len(quantised), str(dtype).removeprefix("torch."), num_bytes / 1e9,
    )  # fmt: skip
    return found


def _shape(checkpoint: Checkpoint, layer: str, stored: StoredFormat) -> tuple[int, int]:
    """[out_features, in_features] of a quantised layer."""
    if checkpoint.has(f"{layer}.qweight"):
        first, second = _matrix(checkpoint, f"{layer}.qweight")
        if isinstance(stored, AwqFormat):
            return second * 8, first
        assert isinstance(stored, GptqFormat)
        ordered = f"{layer}.g_idx"
        inputs = checkpoint.shape(ordered)[0] if checkpoint.has(ordered) else first * 32 // stored.num_bits
        return second, inputs
    if checkpoint.has(f"{layer}.weight_packed"):
        told = f"{layer}.weight_shape"
        sizes = checkpoint.raw(told).flatten().tolist() if checkpoint.has(told) else []
        if len(sizes) != 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
            raise _invalid(f"tensor {told} must hold the two sizes of {layer}, and holds {sizes}")
        return int(sizes[0]), int(sizes[1])
    return _matrix(checkpoint, f"{layer}.weight")


def _matrix(checkpoint: Checkpoint, name: str) -> tuple[int, int]:
    shape = checkpoint.shape(name)
    if len(shape) != 2:
        problem = f"tensor {name} has shape {list(shape)}, and weights of linear layers, with two sizes, are read"
        raise _invalid(f"{problem} for a model that transformers computes")
    return shape[0], shape[1]


def _invalid(problem: str) -> ModelLoadError:
    return ModelLoadError(
        ModelLoadReason.CHECKPOINT_INVALID, f"{problem}. Fetch the checkpoint again, or use the unquantised one."
    )
