"""AWQ (arXiv 2306.00978), as AutoAWQ stores it in its gemm version: 4-bit integers packed along the outputs
(`qweight`), with a scale and a zero point for each output and group of inputs (`scales`, `qzeros`)."""

from dataclasses import dataclass

import torch

from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.quantization.gptq import offsets_of, read_scales_by_column
from fairlead_engine.model.quantization.int4_weight_only import Int4WeightOnly
from fairlead_engine.model.quantization.packed_integers import num_words, unpack
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight
from fairlead_engine.model.quantization.weight_format import WeightFormat
from fairlead_protocol.models.quantized_checkpoints import AwqFormat

_NUM_BITS = 4
_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where each of eight outputs is in a word."""


@dataclass(frozen=True, slots=True)
class Awq:
    """The layers are those that have a `qweight`; `modules_to_not_convert` says the same in names."""

    stored: AwqFormat

    def format_of(self, checkpoint: Checkpoint, name: str, is_sensitive: bool) -> WeightFormat | None:
        return Int4WeightOnly() if checkpoint.has(f"{name}.qweight") else None

    def read(
        self, checkpoint: Checkpoint, name: str, out_features: int, in_features: int, rows: slice
    ) -> QuantizedWeight:
        size = min(self.stored.group_size or in_features, in_features)
        num_groups, width = -(-in_features // size), num_words(out_features, _NUM_BITS)
        first, end, _ = rows.indices(out_features)
        words = slice(first // 8, num_words(end, _NUM_BITS))
        kept = slice(first - words.start * 8, end - words.start * 8)

        def unpacked(kind: str, num_rows: int) -> torch.Tensor:
            shape = (num_rows, width)
            stored = checkpoint.stored(f"{name}.{kind}", shape, dtypes=(torch.int32,), columns=words)
            return unpack(stored, _NUM_BITS, _ORDER)[:, kept].t().contiguous()

        scales = read_scales_by_column(checkpoint, name, num_groups, out_features, rows)
        offsets = None
        if self.stored.has_zeros:
            offsets = offsets_of(unpacked("qzeros", num_groups), scales)
        else:
            checkpoint.skip(f"{name}.qzeros")
        return QuantizedWeight(unpacked("qweight", in_features), scales, size, offsets)
