"""`quant_method: fp8`: 8-bit floats with a float scale. DeepSeek-V3 and Qwen3-FP8 (arXiv 2412.19437) have one,
`weight_scale_inv`, for each block of 128 x 128 or for all of a weight; AutoFP8's and vLLM's checkpoints, and
`fbgemm_fp8`, have `weight_scale` for all of a weight or for each output."""

from dataclasses import dataclass

import torch

from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.quantization.fp8 import Fp8
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight
from fairlead_engine.model.quantization.source import read_scales, read_values
from fairlead_engine.model.quantization.weight_format import WeightFormat
from fairlead_protocol.models.quantized_checkpoints import Fp8Format

_SCALES = ("weight_scale_inv", "weight_scale")
_ACTIVATIONS = ("activation_scale", "input_scale", "input_scale_ub")
"""Scales of activations that were measured once for all, or a bound of them."""


@dataclass(frozen=True, slots=True)
class FinegrainedFp8:
    """The layers are those that have scales; `modules_to_not_convert` says the same in patterns."""

    stored: Fp8Format

    def format_of(self, checkpoint: Checkpoint, name: str, is_sensitive: bool) -> WeightFormat | None:
        return Fp8() if any(checkpoint.has(f"{name}.{kind}") for kind in _SCALES) else None

    def read(
        self, checkpoint: Checkpoint, name: str, out_features: int, in_features: int, rows: slice
    ) -> QuantizedWeight:
        block = self.stored.block or (out_features, in_features)
        kind = next(kind for kind in _SCALES if checkpoint.has(f"{name}.{kind}"))
        if kind == "weight_scale" and checkpoint.raw(f"{name}.{kind}").numel() > 1:
            block = (1, in_features)
        for measured in _ACTIVATIONS:
            checkpoint.skip(f"{name}.{measured}")
        return QuantizedWeight(
            read_values(checkpoint, f"{name}.weight", (out_features, in_features), torch.float8_e4m3fn, rows),
            read_scales(checkpoint, f"{name}.{kind}", out_features, in_features, block, rows),
            block[1],
        )
