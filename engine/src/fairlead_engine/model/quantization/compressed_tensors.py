"""compressed-tensors, as LLM Compressor and others store models for vLLM: groups of layers, each quantised in its way.

Read are integers of 8 bits and 8-bit floats with a scale for each output, for all of a weight or for blocks
(`weight`, `weight_scale`), and integers of 4 and 8 bits packed eight and four to an int32 (`weight_packed`).
Zero points, reordered columns (`weight_g_idx`), sparsity and transforms are refused.
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.quantization.fp8 import Fp8
from fairlead_engine.model.quantization.int4_weight_only import Int4WeightOnly
from fairlead_engine.model.quantization.int8 import Int8
from fairlead_engine.model.quantization.int8_weight_only import Int8WeightOnly
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
        words = (out_features, -(-in_features * group.packed_bits // 32))
        packed = checkpoint.stored(f"{name}.weight_packed", words, dtypes=(torch.int32,), rows=rows)
        return QuantizedWeight(unpack(packed, group.packed_bits)[:, :in_features], scales, block[1])

    def _group(self, name: str) -> Group | None:
        if any(_matches(pattern, name) for pattern in self.ignore):
            return None
        return next((group for group in self.groups if any(_matches(each, name) for each in group.targets)), None)


def unpack(packed: Tensor, num_bits: int) -> Tensor:
    """int8 [rows, 32 / num_bits x words] of int32 [rows, words]: the lowest bits first, half their range added."""
    shifts = torch.arange(0, 32, num_bits, dtype=torch.int32, device=packed.device)
    values = (packed.unsqueeze(-1) >> shifts).bitwise_and_(2**num_bits - 1).sub_(2 ** (num_bits - 1))
    return values.to(torch.int8).flatten(1)


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
    return Group(
        _patterns(group, "targets"),
        weight_format,
        _block(weights, weight_format.name),
        num_bits if layout == _PACKED else None,
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
    if not weights.boolean("symmetric", True):
        raise weights.unsupported("symmetric", "use a checkpoint whose weights have no zero points")
    if weights.text("actorder") not in (None, "static", "weight"):
        raise weights.unsupported("actorder", "use a checkpoint whose columns are in their order (static)")
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
