"""`quantization_config` of a checkpoint, parsed: the fields of each method, and refusals of unsupported values.

Readers of the engine (`model/quantization/`) use the parsed formats; `fairlead check` uses the `layout`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fairlead_common.models.choices import Quantization
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import ModelLoadError
from fairlead_common.models.weight_formats import WeightLayout, decoder_name

GGUF_SUFFIX = ".gguf"
"""Of files that are a model by themselves."""


class StoredFormat(Protocol):
    """Quantisation of the weights in a checkpoint."""

    @property
    def names(self) -> frozenset[str]:
        """Names of the formats, as in the setting `quantization` where possible."""
        ...

    @property
    def layout(self) -> WeightLayout | None:
        """Layout of the weights; None = told by the header of each tensor."""
        ...


@dataclass(frozen=True, slots=True)
class AwqFormat:
    """AWQ in the gemm version of AutoAWQ."""

    group_size: int | None
    """Inputs that share a scale; None = all."""
    has_zeros: bool
    ignored: tuple[str, ...] = ()
    """Parts of names of layers with floats."""
    names = frozenset({Quantization.INT4_WEIGHT_ONLY.value})

    @property
    def layout(self) -> WeightLayout:
        return WeightLayout(
            "int4-weight-only", self.group_size, stored_bits=4, has_zeros=self.has_zeros, stores_zeros=True,
            is_stored=True, ignored=self.ignored,
        )  # fmt: skip


_AWQ_BITS = 4


def _awq(fields: JsonFields) -> AwqFormat:
    bits = "bits" if fields.has("bits") else "w_bit"
    if fields.positive_int(bits, _AWQ_BITS) != _AWQ_BITS:
        raise fields.unsupported(bits, "4 is supported")
    if (fields.text("version") or "gemm").lower() != "gemm":
        raise fields.unsupported("version", "gemm is supported")
    group = "group_size" if fields.has("group_size") else "q_group_size"
    return AwqFormat(fields.positive_or_all(group), fields.boolean("zero_point", True), _left_as_they_are(fields))


def _left_as_they_are(fields: JsonFields) -> tuple[str, ...]:
    """Layers with floats. The engine goes by the tensors of a layer, not by this field."""
    try:
        return tuple(map(decoder_name, fields.texts("modules_to_not_convert")))
    except ModelLoadError:
        return ()


@dataclass(frozen=True, slots=True)
class GptqFormat:
    """GPTQ, as AutoGPTQ and GPTQModel store it."""

    num_bits: int
    group_size: int | None
    """Inputs that share a scale; None = all."""
    zeros_lack: int
    """Added to stored zero points."""
    is_symmetric: bool
    """Whether all stored zero points are equal; memory then holds no zero points."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset({self.layout.name})

    @property
    def layout(self) -> WeightLayout:
        name = "int4-weight-only" if self.num_bits == 4 else "int8-weight-only"
        return WeightLayout(
            name, self.group_size, stored_bits=self.num_bits, has_zeros=not self.is_symmetric, stores_zeros=True,
            is_stored=True,
        )  # fmt: skip


_ZEROS_LACK = {"gptq": 1, "gptq_v2": 0}
"""`GptqFormat.zeros_lack` by `checkpoint_format`."""


def _gptq(fields: JsonFields) -> GptqFormat:
    num_bits = fields.positive_int("bits")
    if num_bits not in (4, 8):
        raise fields.unsupported("bits", "4 and 8 are supported")
    layout = "checkpoint_format" if fields.has("checkpoint_format") else "format"
    if (version := fields.text(layout) or "gptq") not in _ZEROS_LACK or fields.boolean("is_marlin_format", False):
        raise fields.unsupported(layout, f"supported are {' and '.join(_ZEROS_LACK)}")
    if (fields.text("pack_dtype") or "int32") != "int32":
        raise fields.unsupported("pack_dtype", "int32 is supported")
    for section in fields.sections("dynamic"):
        for name in ("bits", "group_size"):
            if section.has(name):
                raise section.unsupported(name, "all layers must have the same, or be left as they are")
    group = fields.positive_or_all("group_size")
    return GptqFormat(num_bits, group, _ZEROS_LACK[version], not fields.is_exactly("sym", False))


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """8-bit floats with a scale for each block, each output or all of a weight."""

    block: tuple[int, int] | None
    """Rows and columns that share a scale; None = all of a weight."""
    ignored: tuple[str, ...] = ()
    """Parts of names of layers with floats."""
    names = frozenset({Quantization.FP8.value})

    @property
    def layout(self) -> WeightLayout:
        rows, columns = self.block or (1, None)
        return WeightLayout("fp8", columns, block_rows=rows, scale_bytes=4, is_stored=True, ignored=self.ignored)


def _fp8(fields: JsonFields) -> Fp8Format:
    """Ignores the measured scales of a static `activation_scheme`: scales per token, as in the engine, err less."""
    if (fields.text("fmt") or "e4m3") != "e4m3":
        raise fields.unsupported("fmt", "e4m3 is supported")
    ignored = _left_as_they_are(fields)
    if not fields.has("weight_block_size"):
        return Fp8Format(None, ignored)
    return Fp8Format(_pair(fields, "weight_block_size"), ignored)


def _pair(fields: JsonFields, name: str) -> tuple[int, int]:
    block = fields.positive_ints(name)
    if len(block) != 2:
        raise fields.invalid(name, "must be two positive integers, rows and columns")
    return block[0], block[1]


@dataclass(frozen=True, slots=True)
class Mxfp4Format:
    """4-bit floats of OpenAI's gpt-oss; the engine keeps twice their value as 8-bit integers."""

    names = frozenset({"mxfp4"})
    layout = WeightLayout(
        "int8-weight-only", 32, stored_bits=4, scale_bytes=1, experts_only=True, is_stored=True, has_name=False
    )


_NVFP4, _NVFP4_GROUP = "nvfp4", 16


def _nvfp4_layout(ignored: tuple[str, ...]) -> WeightLayout:
    return WeightLayout(
        "int8-weight-only", _NVFP4_GROUP, stored_bits=4, scale_bytes=1, is_stored=True, has_name=False, ignored=ignored
    )


@dataclass(frozen=True, slots=True)
class Nvfp4Format:
    """4-bit floats of NVIDIA's ModelOpt; the engine keeps twice their value as 8-bit integers."""

    ignored: tuple[str, ...] = ()
    """Parts of names of layers with floats."""
    names = frozenset({_NVFP4})

    @property
    def layout(self) -> WeightLayout:
        return _nvfp4_layout(self.ignored)


_MODELOPT_FP8 = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN")


def _modelopt(fields: JsonFields) -> StoredFormat:
    """Ignores how activations and a cache were rounded: activations of 4-bit floats stay as they are."""
    fields = fields.section("quantization") or fields
    names = fields.texts("exclude_modules") or fields.texts("ignore")
    ignored = tuple(plain for name in names if (plain := decoder_name(name).strip("*")))
    algorithm = (fields.text("quant_algo") or "").upper()
    if algorithm in _MODELOPT_FP8:
        return Fp8Format(None, ignored)
    if algorithm != "NVFP4":
        raise fields.unsupported("quant_algo", f"supported are NVFP4, {' and '.join(_MODELOPT_FP8)}")
    for section in (fields, *(each for group in fields.sections("config_groups") for each in _weights_of(group))):
        if section.has("group_size") and section.positive_int("group_size") != _NVFP4_GROUP:
            raise section.unsupported("group_size", f"{_NVFP4_GROUP} inputs share a scale in NVFP4")
    return Nvfp4Format(ignored)


def _weights_of(group: JsonFields) -> tuple[JsonFields, ...]:
    weights = group.section("weights")
    return () if weights is None else (weights,)


@dataclass(frozen=True, slots=True)
class GgufFormat:
    """Blocks of a GGUF file, each tensor in its own way."""

    names = frozenset({"gguf"})
    layout = None


def _gguf(fields: JsonFields) -> GgufFormat:
    """For fields of a GGUF file; no `config.json` can name this method."""
    if fields.path.suffix != GGUF_SUFFIX:
        raise fields.unsupported("quant_method", f"name the {GGUF_SUFFIX} file itself as the model")
    return GgufFormat()


_PACKED, _PACKED_FLOATS = "pack-quantized", "nvfp4-pack-quantized"
_PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
_COMPRESSED = {
    ("int", 8, True): "int8",
    ("int", 8, False): "int8-weight-only",
    ("int", 4, False): "int4-weight-only",
    ("float", 8, True): "fp8",
}
"""Type and bits of weights, and whether activations have the same → format."""
_STRATEGIES = {
    "int8": ("channel", "tensor"),
    "int8-weight-only": ("channel", "tensor", "group"),
    "int4-weight-only": ("channel", "tensor", "group"),
    "fp8": ("channel", "tensor", "block"),
}
"""Format → strategies of sharing a scale."""
_ALL = "Linear"
"""Class of all quantisable layers, in `targets` and `ignore`."""
_ANY_ORDER = ("group", "dynamic")
"""Values of `actorder` for columns that share a scale without lying side by side."""


@dataclass(frozen=True, slots=True)
class CompressedGroup:
    """A group of layers with one format in compressed-tensors."""

    targets: tuple[str, ...]
    """Names of layers, regular expressions after `re:`, or Linear for all."""
    name: str
    """Of the format."""
    num_bits: int
    block: tuple[int | None, int | None]
    """Rows and columns that share a scale; None = all."""
    packed_bits: int | None
    """Bits of each integer packed into an int32; None = not packed."""
    has_zeros: bool
    """Whether each group has a zero point; only for packed weights."""
    has_order: bool
    """Whether `weight_g_idx` says which columns share a scale."""


@dataclass(frozen=True, slots=True)
class CompressedFormat:
    """Groups of layers: the first group that targets a layer decides; ignored layers have floats."""

    groups: tuple[CompressedGroup, ...]
    ignore: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(group.name for group in self.groups)

    @property
    def layout(self) -> WeightLayout:
        """That of the first group."""
        group, plain = self.groups[0], tuple(each for each in self.ignore if not each.startswith("re:"))
        if group.name == _NVFP4:
            return _nvfp4_layout(plain)
        return WeightLayout(
            group.name, group.block[1], block_rows=group.block[0] or 1, stored_bits=group.num_bits,
            has_zeros=group.has_zeros, stores_zeros=group.has_zeros, is_stored=True, has_name=len(self.names) == 1,
            ignored=plain,
        )  # fmt: skip

    def group_of(self, layer: str) -> CompressedGroup | None:
        """None = the layer keeps its floats."""
        if any(_matches(pattern, layer) for pattern in self.ignore):
            return None
        return next((group for group in self.groups if any(_matches(each, layer) for each in group.targets)), None)


def _compressed(fields: JsonFields) -> CompressedFormat:
    for name in ("sparsity_config", "transform_config"):
        section = fields.section(name)
        if section is not None and section.text("format") != "dense":
            raise fields.unsupported(name, "use a checkpoint that is quantised and nothing else")
    layout, groups = fields.text("format") or "mixed-precision", fields.sections("config_groups")
    if not groups:
        raise fields.invalid("config_groups", "must name the layers that are quantised, and how")
    return CompressedFormat(tuple(_compressed_group(group, layout) for group in groups), _patterns(fields, "ignore"))


def _compressed_group(group: JsonFields, layout: str) -> CompressedGroup:
    weights, activations = group.section("weights"), group.section("input_activations")
    if weights is None:
        raise group.invalid("weights", "must say how weights are quantised")
    if (group.text("format") or layout) == _PACKED_FLOATS:
        return _nvfp4_group(group, weights, activations)
    kind, num_bits = weights.text("type") or "int", weights.positive_int("num_bits", 8)
    name = _COMPRESSED.get((kind, num_bits, activations is not None))
    if name is None:
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
    block = _block(weights, name)
    if has_zeros and block[0] != 1:
        raise weights.unsupported("symmetric", "weights with zero points must be scaled by channel or group")
    packed_bits = num_bits if is_packed else None
    return CompressedGroup(_targets(group), name, num_bits, block, packed_bits, has_zeros, has_order)


def _nvfp4_group(group: JsonFields, weights: JsonFields, activations: JsonFields | None) -> CompressedGroup:
    for section in (weights, *(() if activations is None else (activations,))):
        if (section.text("type"), section.positive_int("num_bits", 8)) != ("float", 4):
            raise section.unsupported("num_bits", f"{_PACKED_FLOATS} has floats of 4 bits")
    if (weights.text("strategy") or "tensor_group") != "tensor_group" or not weights.boolean("symmetric", True):
        raise weights.unsupported("strategy", f"{_PACKED_FLOATS} has tensor_group, symmetric")
    if weights.positive_int("group_size", _NVFP4_GROUP) != _NVFP4_GROUP:
        raise weights.unsupported("group_size", f"{_NVFP4_GROUP} inputs share a scale in NVFP4")
    if group.section("output_activations") is not None:
        raise group.unsupported("output_activations", "outputs stay as they are")
    return CompressedGroup(_targets(group), _NVFP4, 4, (1, _NVFP4_GROUP), 4, has_zeros=False, has_order=False)


def _targets(group: JsonFields) -> tuple[str, ...]:
    targets = _patterns(group, "targets")
    if not targets:
        raise group.invalid("targets", "must name the layers that are quantised so")
    if any(each != _ALL and each[:1].isupper() for each in targets):
        raise group.unsupported("targets", f"of classes of layers {_ALL} is supported, and layers by their names")
    return targets


def _patterns(fields: JsonFields, name: str) -> tuple[str, ...]:
    for pattern in (patterns := fields.texts(name)):
        try:
            _matches(pattern, "")
        except re.error as error:
            raise fields.invalid(name, f"{pattern!r} is no regular expression ({error})") from error
    return tuple(map(decoder_name, patterns))


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
        return _pair(weights, "block_structure")
    return (1, None) if strategy == "channel" else (None, None)


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    return pattern in (_ALL, name)


QUANTIZATION_SECTIONS = ("quantization_config", "compression_config", "quantization")
"""Sections of `config.json`: of transformers, of older compressed-tensors, and of MLX."""
METHODS: Mapping[str, Callable[[JsonFields], StoredFormat]] = {
    "awq": _awq,
    "compressed-tensors": _compressed,
    "fbgemm_fp8": _fp8,
    "fp8": _fp8,
    "gguf": _gguf,
    "gptq": _gptq,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "mxfp4": lambda _: Mxfp4Format(),
}
"""As `quant_method` spells them."""


MODELOPT_FILE = "hf_quant_config.json"
"""ModelOpt's own file, beside a `config.json` that some versions leave as it was."""


def with_modelopt(config: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `config.json`, with the quantisation that `MODELOPT_FILE` states where they state none."""
    named = beside.get("quantization")
    if any(config.get(section) for section in QUANTIZATION_SECTIONS) or not named:
        return dict(config)
    section = {"quant_method": "modelopt", **named} if isinstance(named, Mapping) else named
    return {**config, QUANTIZATION_SECTIONS[0]: section}


def parse_quantization(fields: JsonFields) -> StoredFormat | None:
    """Quantisation of the weights by `config.json`; None = floats.

    Raises ModelLoadError, naming the field, for a method that no layer computes.
    """
    *named, of_mlx = QUANTIZATION_SECTIONS
    quantization = next((found for name in named if (found := fields.section(name)) is not None), None)
    if quantization is None:
        if fields.section(of_mlx) is not None:
            raise fields.unsupported(of_mlx, "weights as MLX stores them are not read; use another checkpoint")
        return None
    method = quantization.text("quant_method") or ""
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise quantization.unsupported("quant_method", f"supported are {known}; or use the unquantised checkpoint")
    return METHODS[method](quantization)
