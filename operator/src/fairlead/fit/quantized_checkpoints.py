"""What `quantization_config` says, and what of it the engine refuses: the rules of its readers, for those who have
no weights yet.

The engine's own are in `model/quantization/`; `tests/fit/test_quantized_checkpoints.py` holds the two together.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from fairlead.fit.checkpoint_fields import CheckpointFields, ConfigUnreadable
from fairlead.fit.stored_formats import WeightFormat


def _awq(fields: CheckpointFields) -> WeightFormat:
    bits = "bits" if fields.has("bits") else "w_bit"
    if (num_bits := fields.positive(bits, 4)) != 4:
        raise fields.wrong(bits, f"is {num_bits}, and the engine reads 4")
    if (version := fields.text("version") or "gemm").lower() != "gemm":
        raise fields.wrong("version", f"is {version}, and the engine reads gemm")
    group = _group(fields, "group_size" if fields.has("group_size") else "q_group_size")
    has_zeros = fields.flag("zero_point", True)
    return WeightFormat(
        "int4-weight-only", group, stored_bits=4, has_zeros=has_zeros, stores_zeros=True, is_stored=True,
        ignored=_left_as_they_are(fields),
    )  # fmt: skip


_GPTQ_LAYOUTS = ("gptq", "gptq_v2")


def _gptq(fields: CheckpointFields) -> WeightFormat:
    bits = fields.positive("bits")
    if bits not in (4, 8):
        raise fields.wrong("bits", f"is {bits}, and the engine reads 4 and 8")
    name = "checkpoint_format" if fields.has("checkpoint_format") else "format"
    layout = fields.text(name) or "gptq"
    if layout not in _GPTQ_LAYOUTS or fields.flag("is_marlin_format", False):
        raise fields.wrong(name, f"is {layout}, or for Marlin, and the engine reads {' and '.join(_GPTQ_LAYOUTS)}")
    for section in fields.sections("dynamic"):
        for each in ("bits", "group_size"):
            if section.has(each):
                raise section.wrong(each, "is another for some layers, and the engine reads one for all")
    # Symmetric checkpoints store the same zero point everywhere, and none is kept of it.
    kept = "int4-weight-only" if bits == 4 else "int8-weight-only"
    has_zeros = fields.says_no("sym")
    return WeightFormat(
        kept, _group(fields, "group_size"), stored_bits=bits, has_zeros=has_zeros, stores_zeros=True, is_stored=True
    )


def _group(fields: CheckpointFields, name: str) -> int | None:
    """None where one scale is for all, which is written null or -1."""
    return None if fields.number(name, -1) == -1 else fields.positive(name)


def _left_as_they_are(fields: CheckpointFields) -> tuple[str, ...]:
    """Layers that keep their floats. The engine sees by their tensors which those are, whatever the field says."""
    try:
        return tuple(fields.texts("modules_to_not_convert"))
    except ConfigUnreadable:
        return ()


def _fp8(fields: CheckpointFields) -> WeightFormat:
    if (kind := fields.text("fmt") or "e4m3") != "e4m3":
        raise fields.wrong("fmt", f"is {kind}, and the engine reads e4m3")
    ignored = _left_as_they_are(fields)
    if not fields.has("weight_block_size"):
        return WeightFormat("fp8", scale_bytes=4, is_stored=True, ignored=ignored)
    rows, columns = _block(fields, "weight_block_size")
    return WeightFormat("fp8", columns, block_rows=rows, scale_bytes=4, is_stored=True, ignored=ignored)


def _block(fields: CheckpointFields, name: str) -> tuple[int, int]:
    block = fields.wholes(name)
    if len(block) != 2 or min(block) < 1:
        raise fields.wrong(name, "must be two numbers, rows and columns")
    return block[0], block[1]


def _mxfp4(fields: CheckpointFields) -> WeightFormat:
    # The engine keeps its halves as 8-bit integers.
    return WeightFormat(
        "int8-weight-only", 32, stored_bits=4, scale_bytes=1, experts_only=True, is_stored=True, has_name=False
    )


_COMPRESSED = {
    ("int", 8, True): "int8",
    ("int", 8, False): "int8-weight-only",
    ("int", 4, False): "int4-weight-only",
    ("float", 8, True): "fp8",
}
"""By type and bits of weights, and whether activations have the same."""
_STRATEGIES = {
    "int8": ("channel", "tensor"),
    "int8-weight-only": ("channel", "tensor", "group"),
    "int4-weight-only": ("channel", "tensor", "group"),
    "fp8": ("channel", "tensor", "block"),
}
"""What may share a scale in each."""
_PACKED = "pack-quantized"
_PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
_ANY_ORDER = ("group", "dynamic")
_ORDERS = ("", "static", "weight", *_ANY_ORDER)


def _compressed(fields: CheckpointFields) -> WeightFormat:
    for name in ("sparsity_config", "transform_config"):
        section = fields.section(name)
        if section is not None and section.text("format") != "dense":
            raise fields.wrong(name, "is there, and the engine reads checkpoints that are quantised and nothing else")
    layout, groups = fields.text("format") or "mixed-precision", fields.sections("config_groups")
    if not groups:
        raise fields.wrong("config_groups", "must name the layers that are quantised, and how")
    ignored = _patterns(fields, "ignore")
    found = [_compressed_group(group, layout) for group in groups]
    plain = tuple(each for each in ignored if not each.startswith("re:"))
    return replace(found[0], ignored=plain, has_name=len({each.name for each in found}) == 1)


def _compressed_group(group: CheckpointFields, layout: str) -> WeightFormat:
    weights, activations = group.section("weights"), group.section("input_activations")
    if weights is None:
        raise group.wrong("weights", "must say how weights are quantised")
    kind, bits = weights.text("type") or "int", weights.positive("num_bits", 8)
    name = _COMPRESSED.get((kind, bits, activations is not None))
    if name is None:
        told = "quantised" if activations is not None else "float"
        raise weights.wrong("num_bits", f"{kind} of {bits} bits with {told} activations is not what the engine reads")
    alike = activations is None or (activations.text("type") or "int", activations.positive("num_bits", 8))
    if alike not in (True, (kind, bits)):
        raise group.wrong("input_activations", f"must be {kind} of {bits} bits, as the weights, for the engine")
    if group.section("output_activations") is not None:
        raise group.wrong("output_activations", "is there, and the engine leaves outputs as they are")
    is_packed = _is_packed(group, layout, kind)
    has_zeros, order = not weights.flag("symmetric", True), weights.text("actorder")
    if order not in _ORDERS:
        raise weights.wrong("actorder", f"is {order}, and the engine reads {', '.join(_ORDERS[1:])}")
    for each, is_said in (("symmetric", has_zeros), ("actorder", order in _ANY_ORDER)):
        if is_said and not is_packed:
            raise weights.wrong(each, "is only for packed weights in what the engine reads")
    rows, columns = _shared(weights, name)
    if has_zeros and rows != 1:
        raise weights.wrong("symmetric", "is false, and the engine reads zero points by channel or group")
    _patterns(group, "targets")
    return WeightFormat(
        name, columns, block_rows=rows or 1, stored_bits=bits, has_zeros=has_zeros, stores_zeros=has_zeros,
        is_stored=True,
    )  # fmt: skip


def _is_packed(group: CheckpointFields, layout: str, kind: str) -> bool:
    layout = group.text("format") or layout
    if layout not in (_PACKED, *_PLAIN) or (layout == _PACKED and kind != "int"):
        known = ", ".join((_PACKED, *_PLAIN))
        raise group.wrong("format", f"is {layout} of {kind}, and the engine reads {known}")
    return layout == _PACKED


def _shared(weights: CheckpointFields, name: str) -> tuple[int | None, int | None]:
    """Rows and columns that share a scale; None = all."""
    strategy = weights.text("strategy") or ("group" if weights.has("group_size") else "tensor")
    if strategy not in _STRATEGIES[name]:
        raise weights.wrong("strategy", f"is {strategy}, and the engine reads {', '.join(_STRATEGIES[name])}")
    if strategy == "group":
        return 1, weights.positive("group_size")
    if strategy == "block":
        return _block(weights, "block_structure")
    return (1, None) if strategy == "channel" else (None, None)


def _patterns(fields: CheckpointFields, name: str) -> list[str]:
    """Names of layers, or regular expressions of them."""
    for pattern in (patterns := fields.texts(name)):
        try:
            re.compile(pattern.removeprefix("re:") if pattern.startswith("re:") else "")
        except re.error as error:
            raise fields.wrong(name, f"{pattern!r} is no regular expression ({error})") from error
    return patterns


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
