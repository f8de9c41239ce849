"""compressed-tensors, as LLM Compressor and others store models for vLLM: groups of layers, each quantised in its way.

Read are integers of 8 bits and 8-bit floats with a scale for each output, for all of a weight or for blocks
(`weight`, `weight_scale`), and integers of 4 and 8 bits packed eight and four to an int32 (`weight_packed`), which may
have zero points and columns in any order (`weight_g_idx`). Sparsity and transforms are refused.
"""

import re
from dataclasses import dataclass

import torch

from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.quantization.fp8 import Fp8
from fairlead_engine.model.quantization.gptq import offsets_of, read_groups
from fairlead_engine.model.quantization.int4_weight_only import Int4WeightOnly
from fairlead_engine.model.quantization.int8 import Int8
from fairlead_engine.model.quantization.int8_weight_only import Int8WeightOnly
from fairlead_engine.model.quantization.packed_integers import num_words, unpack
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight
from fairlead_engine.model.quantization.source import read_scales, read_values
from fairlead_engine.model.quantization.weight_format import WeightFormat

_PACKED = "pack-quantized"
_PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
_MIXED = "mixed-precision"
_FORMATS: dict[tuple[str | None, int, bool], WeightFormat] = {
    ("int", 8, True): Int8(),
    ("int", 8, False): Int8WeightOnly(),
    ("int", 4, False): Int4WeightOnly(),
    ("float", 8, True): Fp8(),
}
"""By type and bits of weights, and whether activations have the same."""
_STRATEGIES = {
    "int8": ("channel", "tensor"),
    "int8-weight-only": ("channel", "tensor", "group"),
    "int4-weight-only": ("channel", "tensor", "group"),
    "fp8": ("channel", "tensor", "block"),
}
"""What may share a scale in each format."""


_ANY_ORDER = ("group", "dynamic")
"""What `actorder` says where columns that share a scale need not lie side by side."""


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that are quantised alike."""

    targets: tuple[str, ...]
    """Names of layers, regular expressions after `re:`, or Linear for all."""
    weight_format: WeightFormat
    block: tuple[int | None, int | None]
    """Rows and columns that share a scale; None = all."""
    packed_bits: int | None
    """Of each integer in an int32; None = they are not packed."""
    has_zeros: bool
    """Whether 0 may be another integer in each group; of those that are packed."""
    has_order: bool
    """Whether `weight_g_idx` says which columns share a scale."""


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """The first group that has a layer among its targets decides; layers to ignore have floats."""

    groups: tuple[Group, ...]
    ignore: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(group.weight_format.name for group in self.groups)

    def format_of(self, checkpoint: Checkpoint, name: str, is_sensitive: bool) -> WeightFormat | None:
        group = self._group(name)
        return None if group is None else group.weight_format

    def read(
        self, checkpoint: Checkpoint, name: str, out_features: int, in_features: int, rows: slice
    ) -> QuantizedWeight:
        group = self._group(name)
        assert group is not None
        block = (group.block[0] or out_features, group.block[1] or in_features)
        scales = read_scales(checkpoint, f"{name}.weight_scale", out_features, in_features, block, rows)
        checkpoint.skip(f"{name}.input_scale")
        shape = (out_features, in_features)
        if group.packed_bits is None:
            dtype = torch.float8_e4m3fn if group.weight_format.name == Fp8.name else torch.int8
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

    def _group(self, name: str) -> Group | None:
        if any(_matches(pattern, name) for pattern in self.ignore):
            return None
        return next((group for group in self.groups if any(_matches(each, name) for each in group.targets)), None)


def parse(fields: JsonFields) -> CompressedTensors:
    for name in ("sparsity_config", "transform_config"):
        section = fields.section(name)
        if section is not None and section.text("format") != "dense":
            raise fields.unsupported(name, "use a checkpoint that is quantised and nothing else")
    layout, groups = fields.text("format") or _MIXED, fields.sections("config_groups")
    if not groups:
        raise fields.invalid("config_groups", "must name the layers that are quantised, and how")
    return CompressedTensors(tuple(_group(fields, group, layout) for group in groups), _patterns(fields, "ignore"))


def _group(fields: JsonFields, group: JsonFields, layout: str) -> Group:
    weights, activations = group.section("weights"), group.section("input_activations")
    if weights is None:
        raise group.invalid("weights", "must say how weights are quantised")
    kind, num_bits = weights.text("type") or "int", weights.positive_int("num_bits", 8)
    weight_format = _FORMATS.get((kind, num_bits, activations is not None))
    if weight_format is None:
        told = "quantised" if activations else "float"
        raise weights.unsupported(
            "num_bits", f"supported are int8 and fp8 with activations alike, and int8 and int4 with float ones, not "
            f"{kind} of {num_bits} bits with {told} ones"
        )  # fmt: skip
    alike = (kind, num_bits)
    if activations and (activations.text("type") or "int", activations.positive_int("num_bits", 8)) != alike:
        raise activations.unsupported("num_bits", f"activations must be {kind} of {num_bits} bits, as the weights")
    if group.section("output_activations") is not None:
        raise group.unsupported("output_activations", "outputs stay as they are")
    layout = group.text("format") or layout
    if layout not in (_PACKED, *_PLAIN) or (layout == _PACKED and kind != "int"):
        raise group.unsupported("format", f"supported are {', '.join((_PACKED, *_PLAIN))}, not {layout} of {kind}")
    is_packed = layout == _PACKED
    has_zeros, has_order = not weights.boolean("symmetric", True), weights.text("actorder") in _ANY_ORDER
    if has_zeros and not is_packed:
        raise weights.unsupported("symmetric", "only packed weights may have zero points")
    if has_order and not is_packed:
        raise weights.unsupported("actorder", "only packed weights may have their columns in another order")
    block = _block(weights, weight_format.name)
    if has_zeros and block[0] != 1:
        raise weights.unsupported("symmetric", "weights with zero points must be scaled by channel or group")
    return Group(
        _patterns(group, "targets"), weight_format, block, num_bits if is_packed else None, has_zeros, has_order
    )


def _patterns(fields: JsonFields, name: str) -> tuple[str, ...]:
    for pattern in (patterns := fields.texts(name)):
        try:
            _matches(pattern, "")
        except re.error as error:
            raise fields.invalid(name, f"{pattern!r} is no regular expression ({error})") from error
    return tuple(patterns)


def _block(weights: JsonFields, name: str) -> tuple[int | None, int | None]:
    """Rows and columns that share a scale."""
    if weights.text("actorder") not in (None, "static", "weight", *_ANY_ORDER):
        raise weights.unsupported("actorder", f"supported are static, weight, {' and '.join(_ANY_ORDER)}")
    strategy = weights.text("strategy") or ("group" if weights.has("group_size") else "tensor")
    if strategy not in _STRATEGIES[name]:
        raise weights.unsupported("strategy", f"{name} has scales by {', '.join(_STRATEGIES[name])}, not {strategy}")
    if strategy == "group":
        return 1, weights.positive_int("group_size")
    if strategy == "block":
        block = weights.positive_ints("block_structure")
        if len(block) != 2:
            raise weights.invalid("block_structure", "must be two positive integers, rows and columns")
        return block[0], block[1]
    return (1, None) if strategy == "channel" else (None, None)


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    return pattern in ("Linear", name)
