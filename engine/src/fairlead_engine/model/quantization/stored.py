"""Quantised checkpoints: a reader for each layout (`READERS`), and the agreement with a setting.

- GPTQ (arXiv 2210.17323), in the layout of AutoGPTQ and GPTQModel: integers of 4 or 8 bits, packed along the inputs
  (`qweight`), with a scale and a zero point for each output and group of inputs (`scales`, `qzeros`). With `desc_act`
  columns were rounded in order of their inputs' weight, and `g_idx` has the group of each.
- AWQ (arXiv 2306.00978), in the layout of AutoAWQ's gemm version: the same, 4-bit integers packed along the outputs.
- compressed-tensors, the layout of LLM Compressor and others for vLLM: groups of layers, each with its own format.
  Supported are integers of 8 bits and 8-bit floats with a scale for each output, for a whole weight or for blocks
  (`weight`, `weight_scale`), and integers of 4 and 8 bits packed to an int32 (`weight_packed`), with or without zero
  points and columns in any order (`weight_g_idx`). Sparsity and transforms are refused.
- `quant_method: fp8`: 8-bit floats with a float scale. DeepSeek-V3 and Qwen3-FP8 (arXiv 2412.19437) have
  `weight_scale_inv`, for each block of 128 x 128 or for a whole weight; AutoFP8's and vLLM's checkpoints, and
  `fbgemm_fp8`, have `weight_scale` for a whole weight or for each output.
- NVIDIA's ModelOpt: 8-bit floats with `weight_scale` for a whole weight, as above, and NVFP4.
- 4-bit floats, with a scale for each 16 or 32 inputs: `float4`.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fairlead_common.models.quantized_checkpoints import (
    AwqFormat,
    CompressedFormat,
    Fp8Format,
    GgufFormat,
    GptqFormat,
    Mxfp4Format,
    Nvfp4Format,
    StoredFormat,
)
from fairlead_engine.errors import ConfigError, ModelLoadError, ModelLoadReason
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.gguf_checkpoint import GgufWeights
from fairlead_engine.model.quantization.float4 import COMPRESSED_NVFP4, MODELOPT_NVFP4, Mxfp4
from fairlead_engine.model.quantization.fp8 import Fp8
from fairlead_engine.model.quantization.int4_weight_only import Int4WeightOnly
from fairlead_engine.model.quantization.int8 import Int8, Int8WeightOnly
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight, WeightFormat, num_words, unpack
from fairlead_engine.model.quantization.source import Rounded, WeightSource, check_numbers, read_scales, read_values

FORMATS: dict[str, WeightFormat] = {
    weight_format.name: weight_format for weight_format in (Int8(), Int8WeightOnly(), Int4WeightOnly(), Fp8())
}


_BY_BITS: dict[int, WeightFormat] = {4: Int4WeightOnly(), 8: Int8WeightOnly()}
"""By bits."""


@dataclass(frozen=True, slots=True)
class Gptq:
    """Layers with a `qweight`, whatever the configuration says about the rest."""

    stored: GptqFormat

    def format_of(self, checkpoint: Checkpoint, name: str, is_sensitive: bool) -> WeightFormat | None:
        return _BY_BITS[self.stored.num_bits] if checkpoint.has(f"{name}.qweight") else None

    def read(self, checkpoint: Checkpoint, name: str, shape: tuple[int, int], rows: slice) -> QuantizedWeight:
        bits, (out_features, in_features) = self.stored.num_bits, shape
        size = min(self.stored.group_size or in_features, in_features)
        num_groups = -(-in_features // size)
        packed = checkpoint.stored(
            f"{name}.qweight", (num_words(in_features, bits), out_features), dtypes=(torch.int32,), columns=rows
        )
        values = unpack(packed.t().contiguous(), bits)[:, :in_features].contiguous()
        scales = read_scales_by_column(checkpoint, name, num_groups, out_features, rows)
        zeros = read_outputs(checkpoint, f"{name}.qzeros", (num_groups, out_features), rows, bits).to(torch.int32)
        if self.stored.zeros_lack:  # within the bits they have, 0 being stored as the last of them
            half = 2 ** (bits - 1)
            zeros = (zeros + half + self.stored.zeros_lack).bitwise_and_(2**bits - 1) - half
        checkpoint.skip_zeros(f"{name}.bias")  # which some store for every layer
        groups = read_groups(checkpoint, f"{name}.g_idx", in_features, size)
        return QuantizedWeight(values, scales, size, offsets_of(zeros, scales), groups)


def read_outputs(
    checkpoint: Checkpoint,
    name: str,
    shape: tuple[int, int],
    rows: slice,
    bits: int,
    order: Sequence[int] | None = None,
) -> Tensor:
    """int8 [rows, shape[0]] from integers of `shape`, packed along the outputs (`unpack`)."""
    first, end, _ = rows.indices(shape[1])
    words = slice(first * bits // 32, num_words(end, bits))
    packed_shape = (shape[0], num_words(shape[1], bits))
    packed = checkpoint.stored(name, packed_shape, dtypes=(torch.int32,), columns=words)
    skipped = first - words.start * 32 // bits
    return unpack(packed, bits, order)[:, skipped : skipped + end - first].t().contiguous()


def offsets_of(zeros: Tensor, scales: Tensor) -> Tensor | None:
    """Offsets from zero points [out_features, groups], as values from minus half their range on; None = all 0."""
    return (zeros * scales).neg_() if bool(zeros.any()) else None


def read_scales_by_column(checkpoint: Checkpoint, name: str, num_groups: int, out_features: int, rows: slice) -> Tensor:
    """float32 [rows, groups] from `scales`, stored by groups and outputs."""
    scales = checkpoint.stored(f"{name}.scales", (num_groups, out_features), columns=rows).to(torch.float32)
    check_numbers(f"{name}.scales", scales.isfinite())
    return scales.t().contiguous()


def read_groups(checkpoint: Checkpoint, name: str, in_features: int, size: int) -> Tensor | None:
    """int64 [in_features]: the group of each input; None where groups are consecutive, or not stored."""
    if not checkpoint.has(name):
        return None
    if size == in_features:
        checkpoint.skip(name)
        return None
    groups = checkpoint.stored(name, (in_features,), dtypes=(torch.int32, torch.int64)).to(torch.int64)
    in_order = torch.arange(in_features, device=groups.device) // size
    if torch.equal(groups, in_order):
        return None
    if int(groups.min()) < 0 or int(groups.max()) > int(in_order[-1]):
        raise ModelLoadError(
            ModelLoadReason.CHECKPOINT_INVALID,
            f"tensor {name} names groups of inputs from {int(groups.min())} to {int(groups.max())}, and by the group "
            f"size of {size} there are {int(in_order[-1]) + 1}, counted from 0. Fetch the checkpoint again.",
        )
    return groups


_AWQ_BITS = 4
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Place of each of eight outputs in a word."""


@dataclass(frozen=True, slots=True)
class Awq:
    """Layers with a `qweight`; `modules_to_not_convert` says the same in names."""

    stored: AwqFormat

    def format_of(self, checkpoint: Checkpoint, name: str, is_sensitive: bool) -> WeightFormat | None:
        return Int4WeightOnly() if checkpoint.has(f"{name}.qweight") else None

    def read(self, checkpoint: Checkpoint, name: str, shape: tuple[int, int], rows: slice) -> QuantizedWeight:
        out_features, in_features = shape
        size = min(self.stored.group_size or in_features, in_features)
        num_groups, offsets = -(-in_features // size), None
        scales = read_scales_by_column(checkpoint, name, num_groups, out_features, rows)
        read = partial(read_outputs, checkpoint, rows=rows, bits=_AWQ_BITS, order=_AWQ_ORDER)
        if self.stored.has_zeros:
            offsets = offsets_of(read(f"{name}.qzeros", (num_groups, out_features)), scales)
        else:
            checkpoint.skip(f"{name}.qzeros")
        return QuantizedWeight(read(f"{name}.qweight", (in_features, out_features)), scales, size, offsets)


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """Reads each layer in the format of its group in the configuration."""

    stored: CompressedFormat

    def format_of(self, checkpoint: Checkpoint, name: str, is_sensitive: bool) -> WeightFormat | None:
        group = self.stored.group_of(name)
        return None if group is None else FORMATS.get(group.name, Int8WeightOnly())

    def read(self, checkpoint: Checkpoint, name: str, shape: tuple[int, int], rows: slice) -> QuantizedWeight:
        group = self.stored.group_of(name)
        assert group is not None
        if group.name not in FORMATS:
            return COMPRESSED_NVFP4.read(checkpoint, name, shape, rows)
        out_features, in_features = shape
        block = (group.block[0] or out_features, group.block[1] or in_features)
        scales = read_scales(checkpoint, f"{name}.weight_scale", shape, block, rows)
        for measured in ("input_scale", "input_zero_point"):  # once for all; ours are each token's own
            checkpoint.skip(f"{name}.{measured}")
        if group.packed_bits is None:
            dtype = torch.float8_e4m3fn if group.name == Fp8.name else torch.int8
            return QuantizedWeight(read_values(checkpoint, f"{name}.weight", shape, dtype, rows), scales, block[1])
        checkpoint.skip(f"{name}.weight_shape")
        words = (out_features, num_words(in_features, group.packed_bits))
        packed = checkpoint.stored(f"{name}.weight_packed", words, dtypes=(torch.int32,), rows=rows)
        values = unpack(packed, group.packed_bits)[:, :in_features]
        offsets = None
        if group.has_zeros:
            first, end, _ = rows.indices(out_features)
            per_word = 32 // group.packed_bits
            packed = checkpoint.stored(
                f"{name}.weight_zero_point",
                (num_words(out_features, group.packed_bits), scales.shape[1]),
                dtypes=(torch.int32,),
                rows=slice(first // per_word, -(-end // per_word)),
            )
            zeros = unpack(packed.t().contiguous(), group.packed_bits).t()
            skipped = first % per_word
            offsets = offsets_of(zeros[skipped : skipped + end - first], scales)
        size = min(block[1], in_features)
        groups = read_groups(checkpoint, f"{name}.weight_g_idx", in_features, size) if group.has_order else None
        return QuantizedWeight(values, scales, size, offsets, groups)


_FP8_SCALES = ("weight_scale_inv", "weight_scale")
_FP8_ACTIVATIONS = ("activation_scale", "input_scale", "input_scale_ub")
"""Scales of activations measured once for all, or a bound of them."""


@dataclass(frozen=True, slots=True)
class FinegrainedFp8:
    """Layers with scales; `modules_to_not_convert` says the same in patterns."""

    stored: Fp8Format

    def format_of(self, checkpoint: Checkpoint, name: str, is_sensitive: bool) -> WeightFormat | None:
        return Fp8() if any(checkpoint.has(f"{name}.{kind}") for kind in _FP8_SCALES) else None

    def read(self, checkpoint: Checkpoint, name: str, shape: tuple[int, int], rows: slice) -> QuantizedWeight:
        block = self.stored.block or shape
        kind = next(kind for kind in _FP8_SCALES if checkpoint.has(f"{name}.{kind}"))
        if self.stored.block is None and (found := checkpoint.shape(f"{name}.{kind}")) and found[0] > 1:
            block = (shape[0] // found[0], shape[1])  # a scale for each output, or for each of two projections
        for measured in _FP8_ACTIVATIONS:
            checkpoint.skip(f"{name}.{measured}")
        return QuantizedWeight(
            read_values(checkpoint, f"{name}.weight", shape, torch.float8_e4m3fn, rows),
            read_scales(checkpoint, f"{name}.{kind}", shape, block, rows),
            block[1],
        )


logger = logging.getLogger(__name__)

READERS: dict[type, Callable[[Any], WeightSource]] = {
    AwqFormat: Awq,
    CompressedFormat: CompressedTensors,
    Fp8Format: FinegrainedFp8,
    GgufFormat: lambda _: GgufWeights(),
    GptqFormat: Gptq,
    Mxfp4Format: lambda _: Mxfp4(),
    Nvfp4Format: lambda _: MODELOPT_NVFP4,
}


_DOUBLED = frozenset({"mxfp4", "nvfp4"})
"""Formats of 4 bits that memory holds in 8."""


def choose_source(setting: str | None, stored: StoredFormat | None) -> WeightSource:
    """Chooses the source of weights. Raises ConfigError for a `setting` that the checkpoint contradicts."""
    if stored is None:
        return Rounded(FORMATS[setting] if setting else None)
    if setting is not None and stored.names != {setting}:
        found = ", ".join(sorted(stored.names))
        raise ConfigError(
            "quantization",
            f"{setting} contradicts the checkpoint, whose weights are {found} by the quantization_config of its "
            "config.json",
            "leave it out to serve them as they are stored, or use the unquantised checkpoint",
        )
    for name in sorted(stored.names & _DOUBLED):
        told = "%s weights become 8-bit integers while they are loaded, without loss, in twice their memory"
        logger.info(told, name.upper())
    return READERS[type(stored)](stored)
