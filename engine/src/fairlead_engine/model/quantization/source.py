"""Where a layer's quantised weight comes from: rounded during loading, or stored in the checkpoint."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight, WeightFormat


class WeightSource(Protocol):
    """Names the format of each linear layer, and reads quantised ones."""

    def format_of(self, checkpoint: Checkpoint, name: str, is_sensitive: bool) -> WeightFormat | None:
        """Of the layer `name`, such as model.layers.0.mlp.up_proj; None = its weight is floats. `is_sensitive`: whether
        small errors matter much, as in a router or the output projection."""

    def read(self, checkpoint: Checkpoint, name: str, shape: tuple[int, int], rows: slice) -> QuantizedWeight:
        """Outputs `rows` of a quantised weight of `shape`. Raises ModelLoadError, naming a tensor that does not fit."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """A checkpoint of floats, whose linear layers, except sensitive ones, are rounded to one format during reading."""

    weight_format: WeightFormat | None
    """None = not rounded."""

    def format_of(self, checkpoint: Checkpoint, name: str, is_sensitive: bool) -> WeightFormat | None:
        return None if is_sensitive else self.weight_format

    def read(self, checkpoint: Checkpoint, name: str, shape: tuple[int, int], rows: slice) -> QuantizedWeight:
        assert self.weight_format is not None
        return self.weight_format.quantize(checkpoint.stored(f"{name}.weight", shape, rows=rows))


def read_values(checkpoint: Checkpoint, name: str, shape: tuple[int, int], dtype: torch.dtype, rows: slice) -> Tensor:
    """int8 or float8_e4m3fn [rows, in_features] from a tensor of `shape`; NaN is refused, as decoding would hide it."""
    values = checkpoint.stored(name, shape, dtypes=(dtype,), rows=rows)
    if dtype is torch.float8_e4m3fn:
        check_numbers(name, values.view(torch.uint8).bitwise_and(0x7F) != 0x7F)
    return values


def read_scales(
    checkpoint: Checkpoint, name: str, shape: tuple[int, int], block: tuple[int, int], rows: slice
) -> Tensor:
    """float32 [rows, groups] from a tensor with a scale for each block of a weight of `shape`; a single scale may have
    any number of dimensions."""
    blocks = (-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    flat: tuple[tuple[int, ...], ...] = ((1,), ()) if blocks == (1, 1) else ((blocks[0],),) if blocks[1] == 1 else ()
    scales = checkpoint.stored(name, blocks, *flat).to(torch.float32).view(blocks)
    check_numbers(name, scales.isfinite())
    return scales.repeat_interleave(block[0], dim=0)[: shape[0]][rows]


def check_numbers(name: str, are_numbers: Tensor) -> None:
    """Raises ModelLoadError, naming the tensor, for a number that is not finite, which would spoil every request."""
    if not bool(are_numbers.all()):
        raise ModelLoadError(
            ModelLoadReason.CHECKPOINT_INVALID,
            f"tensor {name} holds what is no finite number. The checkpoint is damaged, or went wrong when it was "
            "quantised: fetch it again, or use the unquantised one.",
        )
