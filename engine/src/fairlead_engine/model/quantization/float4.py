"""Stored 4-bit floats (e2m1), two to a byte, the first in the lower half, with a scale for each few inputs.

Twice such a number is whole: 8-bit integers with scales hold weights exactly.

- OpenAI's `quant_method: mxfp4`, the layout of gpt-oss: a power of two for each 32 inputs (OCP Microscaling Formats).
- NVFP4: an 8-bit float (e4m3) for each 16 inputs, and a float32 for the whole weight, by which ModelOpt's readers
  multiply and compressed-tensors' readers divide. Stored scales of activations are left over: activations stay floats.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.quantization.int8 import Int8WeightOnly
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight, WeightFormat
from fairlead_engine.model.quantization.source import check_numbers

E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the value of four bits, of which the highest is the sign."""
_MXFP4_GROUP, _NVFP4_GROUP = 32, 16
_MXFP4_BIAS = 127


def doubled(codes: Tensor) -> Tensor:
    """int8 [..., 2 x bytes] from uint8 [..., bytes]: twice the numbers."""
    each = torch.tensor(E2M1_DOUBLED, dtype=torch.int8, device=codes.device)
    return each[torch.stack((codes & 15, codes >> 4), dim=-1).int()].flatten(-2)


def _check_inputs(name: str, in_features: int, group_size: int) -> None:
    """Raises ModelLoadError, naming the tensor, for inputs that groups do not divide."""
    if in_features % group_size:
        raise ModelLoadError(
            ModelLoadReason.TENSOR_SHAPE_MISMATCH,
            f"tensor {name} should have a scale for each {group_size} inputs of its layer, which by config.json has "
            f"{in_features}. Check that config.json belongs to these weights, or use the unquantised checkpoint.",
        )


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """Layers with `blocks`, two numbers to a byte, and `scales`."""

    def format_of(self, checkpoint: Checkpoint, name: str, is_sensitive: bool) -> WeightFormat | None:
        return Int8WeightOnly() if checkpoint.has(f"{name}.blocks") else None

    def read(self, checkpoint: Checkpoint, name: str, shape: tuple[int, int], rows: slice) -> QuantizedWeight:
        _check_inputs(f"{name}.blocks", shape[1], _MXFP4_GROUP)
        groups = (shape[0], shape[1] // _MXFP4_GROUP)
        blocks = checkpoint.stored(f"{name}.blocks", (*groups, _MXFP4_GROUP // 2), dtypes=(torch.uint8,), rows=rows)
        exponents = checkpoint.stored(f"{name}.scales", groups, dtypes=(torch.uint8,), rows=rows)
        halves = torch.full(exponents.shape, 0.5, device=blocks.device)
        scales = torch.ldexp(halves, exponents.int() - _MXFP4_BIAS)
        return QuantizedWeight(doubled(blocks).flatten(1), scales, _MXFP4_GROUP)


@dataclass(frozen=True, slots=True)
class Nvfp4:
    """Layers with a scale for the whole weight; configurations say the same in patterns of names."""

    values: str
    """Name of the packed numbers, uint8 [out_features, in_features / 2], below the layer."""
    whole: str
    """The same of the whole weight's scale."""
    divides: bool
    """Whether the scales of groups are divided by the whole weight's."""
    measured: str
    """Name of the scale of activations."""

    def format_of(self, checkpoint: Checkpoint, name: str, is_sensitive: bool) -> WeightFormat | None:
        return Int8WeightOnly() if checkpoint.has(f"{name}.{self.whole}") else None

    def read(self, checkpoint: Checkpoint, name: str, shape: tuple[int, int], rows: slice) -> QuantizedWeight:
        out_features, in_features = shape
        _check_inputs(f"{name}.weight_scale", in_features, _NVFP4_GROUP)
        codes = checkpoint.stored(
            f"{name}.{self.values}", (out_features, in_features // 2), dtypes=(torch.uint8,), rows=rows
        )
        groups = (out_features, in_features // _NVFP4_GROUP)
        scales = checkpoint.stored(f"{name}.weight_scale", groups, dtypes=(torch.float8_e4m3fn,), rows=rows).float()
        check_numbers(f"{name}.weight_scale", scales.isfinite())
        whole = checkpoint.stored(f"{name}.{self.whole}", (1,), ()).float().view(1)
        scales = scales / whole if self.divides else scales * whole
        check_numbers(f"{name}.{self.whole}", torch.cat((whole, scales.flatten())).isfinite())
        checkpoint.skip(f"{name}.{self.measured}")
        return QuantizedWeight(doubled(codes), scales * 0.5, _NVFP4_GROUP)


MODELOPT_NVFP4 = Nvfp4("weight", "weight_scale_2", divides=False, measured="input_scale")
COMPRESSED_NVFP4 = Nvfp4("weight_packed", "weight_global_scale", divides=True, measured="input_global_scale")
