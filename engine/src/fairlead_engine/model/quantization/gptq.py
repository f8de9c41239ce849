"""GPTQ (arXiv 2210.17323), as AutoGPTQ and GPTQModel store it: integers of 4 or 8 bits, packed along the inputs
(`qweight`), with a scale and a zero point for each output and group of inputs (`scales`, `qzeros`).

With `desc_act` columns were rounded in the order of what their inputs matter, and `g_idx` says the group of each.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.quantization.int4_weight_only import Int4WeightOnly
from fairlead_engine.model.quantization.int8_weight_only import Int8WeightOnly
from fairlead_engine.model.quantization.packed_integers import num_words, unpack
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight
from fairlead_engine.model.quantization.source import check_numbers
from fairlead_engine.model.quantization.weight_format import WeightFormat
from fairlead_protocol.models.quantized_checkpoints import GptqFormat

_FORMATS: dict[int, WeightFormat] = {4: Int4WeightOnly(), 8: Int8WeightOnly()}
"""By bits."""


@dataclass(frozen=True, slots=True)
class Gptq:
    """The layers are those that have a `qweight`, whatever the configuration says of others."""

    stored: GptqFormat

    def format_of(self, checkpoint: Checkpoint, name: str, is_sensitive: bool) -> WeightFormat | None:
        return _FORMATS[self.stored.num_bits] if checkpoint.has(f"{name}.qweight") else None

    def read(
        self, checkpoint: Checkpoint, name: str, out_features: int, in_features: int, rows: slice
    ) -> QuantizedWeight:
        bits, size = self.stored.num_bits, min(self.stored.group_size or in_features, in_features)
        num_groups = -(-in_features // size)
        first, end, _ = rows.indices(out_features)
        packed = checkpoint.stored(
            f"{name}.qweight", (num_words(in_features, bits), out_features), dtypes=(torch.int32,), columns=rows
        )
        values = unpack(packed.t().contiguous(), bits)[:, :in_features].contiguous()
        scales = read_scales_by_column(checkpoint, name, num_groups, out_features, rows)
        words = slice(first * bits // 32, num_words(end, bits))
        packed_zeros = checkpoint.stored(
            f"{name}.qzeros", (num_groups, num_words(out_features, bits)), dtypes=(torch.int32,), columns=words
        )
        skipped = first - words.start * 32 // bits
        zeros = unpack(packed_zeros, bits)[:, skipped : skipped + end - first].t().to(torch.int32)
        if self.stored.zeros_lack:  # within the bits they have, 0 being stored as the last of them
            half = 2 ** (bits - 1)
            zeros = (zeros + half + self.stored.zeros_lack).bitwise_and_(2**bits - 1) - half
        checkpoint.skip_zeros(f"{name}.bias")  # which some store for every layer
        groups = read_groups(checkpoint, f"{name}.g_idx", in_features, size)
        return QuantizedWeight(values, scales, size, offsets_of(zeros, scales), groups)


def offsets_of(zeros: Tensor, scales: Tensor) -> Tensor | None:
    """What zero points [out_features, groups], of values from minus half their range, come to; None where all are 0."""
    return (zeros * scales).neg_() if bool(zeros.any()) else None


def read_scales_by_column(checkpoint: Checkpoint, name: str, num_groups: int, out_features: int, rows: slice) -> Tensor:
    """float32 [rows, groups] of `scales`, which are stored by groups and outputs."""
    scales = checkpoint.stored(f"{name}.scales", (num_groups, out_features), columns=rows).to(torch.float32)
    check_numbers(f"{name}.scales", scales.isfinite())
    return scales.t().contiguous()


def read_groups(checkpoint: Checkpoint, name: str, in_features: int, size: int) -> Tensor | None:
    """int64 [in_features]: the group of each input; None where they follow one another, or that is not stored."""
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
