"""Which format a weight is stored in and kept in, and what that takes, by `quantization_config` and
`engine.quantization`.

As the engine does it: a format that a device has no product for is kept as 8-bit numbers and decoded, so that 4-bit
weights take more than half a byte on a GPU.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fairlead.fit.checkpoint_fields import CheckpointFields
from fairlead.fit.weight_parts import Part, Role

FLOAT_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Of number formats by name."""
_INT4_GROUP = 32
"""Inputs that share a scale where 4-bit weights are rounded while they are loaded."""
_PACKED_GROUPS = (32, 64, 128, 256)
_ROWS_TOGETHER = 16
_FP8_ALIGNMENT = 16


class DeviceKind(StrEnum):
    """Where an engine computes."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the weights of linear layers are quantised."""

    name: str
    """As `engine.quantization` spells it."""
    group: int | None = None
    """Columns that share a scale; None = all."""
    block_rows: int = 1
    """Rows that share a scale where it is stored; kept is one for each."""
    stored_bits: int = 8
    has_zeros: bool = False
    """Whether a zero point is kept beside each scale,"""
    stores_zeros: bool = False
    """and whether one is stored."""
    scale_bytes: int = 2
    """Of a scale where it is stored."""
    experts_only: bool = False
    is_stored: bool = False
    """Whether the checkpoint has it; else weights are rounded as they are loaded."""
    ignored: tuple[str, ...] = ()
    """Parts of names of layers that keep their floats."""

    def takes(self, part: Part) -> bool:
        """Whether a part is quantised."""
        if part.role not in (Role.LINEAR, Role.EXPERT, *((Role.RESTORED,) if self.is_stored else ())):
            return False
        if any(each in part.name for each in self.ignored):
            return False
        return part.role is Role.EXPERT or not self.experts_only

    def num_groups(self, columns: int) -> int:
        """Scales of a row."""
        return 1 if self.group is None else -(-columns // self.group)

    def stored_bytes(self, part: Part) -> int:
        """Of a part's weights in the checkpoint's files."""
        values = -(-part.weights * self.stored_bits // 8)
        scales = part.num * -(-part.rows // self.block_rows) * self.num_groups(part.columns)
        zeros = scales * self.stored_bits // 8 if self.stores_zeros else 0
        return values + scales * self.scale_bytes + zeros

    def kept_bytes(self, part: Part, device: DeviceKind, float_bytes: int) -> int:
        """Of a part's weights in the engine's memory; `float_bytes`: of a number that is computed in."""
        rows, groups = part.num * part.rows, self.num_groups(part.columns)
        scales = rows * groups
        offsets = 4 * scales if self.has_zeros else 0
        match self.name:
            case "int8":
                return part.weights + rows * (12 if device is DeviceKind.CPU else 4)
            case "int4-weight-only" if device is DeviceKind.CPU and self._packs(part):
                return part.weights // 2 + 2 * scales * float_bytes
            case "fp8" if device is DeviceKind.CUDA and groups == 1 and self._is_aligned(part):
                return part.weights + 4 * rows
            case _:
                return part.weights + scales * (4 + float_bytes) + offsets

    def _packs(self, part: Part) -> bool:
        fits = self.group in _PACKED_GROUPS and part.rows % _ROWS_TOGETHER == 0
        return fits and self.group is not None and part.columns % self.group == 0

    @staticmethod
    def _is_aligned(part: Part) -> bool:
        return part.rows % _FP8_ALIGNMENT == 0 and part.columns % _FP8_ALIGNMENT == 0


ROUNDED: Mapping[str, WeightFormat] = {
    "int8": WeightFormat("int8"),
    "int8-weight-only": WeightFormat("int8-weight-only"),
    "int4-weight-only": WeightFormat("int4-weight-only", group=_INT4_GROUP),
    "fp8": WeightFormat("fp8"),
}
"""What `engine.quantization` may say."""


def _awq(fields: CheckpointFields) -> WeightFormat:
    group = _group(fields, "group_size" if fields.has("group_size") else "q_group_size")
    has_zeros = fields.flag("zero_point", True)
    return WeightFormat(
        "int4-weight-only", group, stored_bits=4, has_zeros=has_zeros, stores_zeros=True, is_stored=True,
        ignored=tuple(fields.texts("modules_to_not_convert")),
    )  # fmt: skip


def _gptq(fields: CheckpointFields) -> WeightFormat:
    bits = fields.positive("bits")
    if bits not in (4, 8):
        raise fields.wrong("bits", f"is {bits}, and the engine reads 4 and 8")
    # Symmetric checkpoints store the same zero point everywhere, and none is kept of it.
    name = "int4-weight-only" if bits == 4 else "int8-weight-only"
    has_zeros = not fields.flag("sym", True)
    return WeightFormat(
        name, _group(fields, "group_size"), stored_bits=bits, has_zeros=has_zeros, stores_zeros=True, is_stored=True
    )


def _group(fields: CheckpointFields, name: str) -> int | None:
    """None where one scale is for all, which is written null or -1."""
    return None if fields.number(name, -1) <= 0 else fields.positive(name)


def _fp8(fields: CheckpointFields) -> WeightFormat:
    ignored = tuple(fields.texts("modules_to_not_convert"))
    block = fields.wholes("weight_block_size")
    if not block:
        return WeightFormat("fp8", scale_bytes=4, is_stored=True, ignored=ignored)
    if len(block) != 2 or min(block) < 1:
        raise fields.wrong("weight_block_size", "must be two numbers, rows and columns")
    return WeightFormat("fp8", block[1], block_rows=block[0], scale_bytes=4, is_stored=True, ignored=ignored)


def _mxfp4(fields: CheckpointFields) -> WeightFormat:
    # The engine keeps its halves as 8-bit integers.
    return WeightFormat("int8-weight-only", 32, stored_bits=4, scale_bytes=1, experts_only=True, is_stored=True)


_COMPRESSED = {
    ("int", 8, True): "int8",
    ("int", 8, False): "int8-weight-only",
    ("int", 4, False): "int4-weight-only",
    ("float", 8, True): "fp8",
}
"""By type and bits of weights, and whether activations have the same."""


def _compressed(fields: CheckpointFields) -> WeightFormat:
    groups = fields.sections("config_groups")
    weights = groups[0].section("weights") if groups else None
    if weights is None:
        raise fields.wrong("config_groups", "must name the layers that are quantised, and how")
    kind, bits = weights.text("type") or "int", weights.positive("num_bits", 8)
    name = _COMPRESSED.get((kind, bits, groups[0].section("input_activations") is not None))
    if name is None:
        raise fields.wrong("config_groups", f"{kind} of {bits} bits is not what the engine computes with")
    block, has_zeros = weights.wholes("block_structure"), not weights.flag("symmetric", True)
    if block and (len(block) != 2 or min(block) < 1):
        raise weights.wrong("block_structure", "must be two numbers, rows and columns")
    group = block[1] if len(block) == 2 else _group(weights, "group_size")
    return WeightFormat(
        name, group, block_rows=block[0] if len(block) == 2 else 1, stored_bits=bits,
        has_zeros=has_zeros, stores_zeros=has_zeros, is_stored=True,
        ignored=tuple(each for each in fields.texts("ignore") if not each.startswith("re:")),
    )  # fmt: skip


METHODS: Mapping[str, Callable[[CheckpointFields], WeightFormat]] = {
    "awq": _awq,
    "compressed-tensors": _compressed,
    "fbgemm_fp8": _fp8,
    "fp8": _fp8,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
}
"""As `quant_method` spells them: what the engine reads, but for GGUF files, whose sizes their headers say."""


def stored_format(fields: CheckpointFields) -> WeightFormat | None:
    """What `quantization_config` says; None = weights are floats. Raises ConfigUnreadable for what the engine does not
    read."""
    section = fields.section("quantization_config")
    if section is None:
        return None
    method = section.text("quant_method")
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise section.wrong("quant_method", f"{method or 'none'} is not read by the engine, which knows {known}")
    return METHODS[method](section)
