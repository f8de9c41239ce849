"""OpenAI's `quant_method: mxfp4`, as gpt-oss is stored: 4-bit floats (e2m1), and a power of two for each 32 of them, as
OCP's Microscaling Formats have it. Their halves are whole numbers, so 8-bit integers with scales hold them exactly."""

from dataclasses import dataclass

import torch

from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.quantization.int8_weight_only import Int8WeightOnly
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight
from fairlead_engine.model.quantization.weight_format import WeightFormat

_GROUP_SIZE = 32
_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12)
"""Twice what the lower three of four bits say; the highest is the sign."""
_EXPONENT_BIAS = 127


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """The layers are those that have `blocks`, of two numbers to a byte, and `scales`."""

    def format_of(self, checkpoint: Checkpoint, name: str, is_sensitive: bool) -> WeightFormat | None:
        return Int8WeightOnly() if checkpoint.has(f"{name}.blocks") else None

    def read(
        self, checkpoint: Checkpoint, name: str, out_features: int, in_features: int, rows: slice
    ) -> QuantizedWeight:
        shape = (out_features, in_features // _GROUP_SIZE)
        blocks = checkpoint.stored(f"{name}.blocks", (*shape, _GROUP_SIZE // 2), dtypes=(torch.uint8,), rows=rows)
        exponents = checkpoint.stored(f"{name}.scales", shape, dtypes=(torch.uint8,), rows=rows)
        each = torch.tensor([*_DOUBLED, *(-number for number in _DOUBLED)], dtype=torch.int8, device=blocks.device)
        values = each[torch.stack((blocks & 15, blocks >> 4), dim=-1).int()].flatten(1)
        halves = torch.full(exponents.shape, 0.5, device=blocks.device)
        return QuantizedWeight(values, torch.ldexp(halves, exponents.int() - _EXPONENT_BIAS), _GROUP_SIZE)
