"""compressed-tensors, as LLM Compressor and others store models for vLLM: groups of layers, each quantised in its way.

Read are integers of 8 bits and 8-bit floats with a scale for each output, for all of a weight or for blocks
(`weight`, `weight_scale`), and integers of 4 and 8 bits packed eight and four to an int32 (`weight_packed`), which may
have zero points and columns in any order (`weight_g_idx`). Sparsity and transforms are refused.
"""

from dataclasses import dataclass

import torch

from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.quantization.formats import FORMATS
from fairlead_engine.model.quantization.fp8 import Fp8
from fairlead_engine.model.quantization.gptq import offsets_of, read_groups
from fairlead_engine.model.quantization.packed_integers import num_words, unpack
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight
from fairlead_engine.model.quantization.source import read_scales, read_values
from fairlead_engine.model.quantization.weight_format import WeightFormat
from fairlead_protocol.models.quantized_checkpoints import CompressedFormat


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """Reads each layer as its group says."""

    stored: CompressedFormat

    def format_of(self, checkpoint: Checkpoint, name: str, is_sensitive: bool) -> WeightFormat | None:
        group = self.stored.group_of(name)
        return None if group is None else FORMATS[group.name]

    def read(
        self, checkpoint: Checkpoint, name: str, out_features: int, in_features: int, rows: slice
    ) -> QuantizedWeight:
        group = self.stored.group_of(name)
        assert group is not None
        block = (group.block[0] or out_features, group.block[1] or in_features)
        scales = read_scales(checkpoint, f"{name}.weight_scale", out_features, in_features, block, rows)
        for measured in ("input_scale", "input_zero_point"):  # once for all; ours are each token's own
            checkpoint.skip(f"{name}.{measured}")
        shape = (out_features, in_features)
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
