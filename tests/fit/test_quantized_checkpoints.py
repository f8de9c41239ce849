"""`quantization_config`: what is read of it, and what is refused by its field."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import ModelLoadError
from fairlead_common.models.quantized_checkpoints import StoredFormat, parse_quantization, with_modelopt
from fairlead_common.models.weight_formats import WeightLayout
from fairlead_engine.model.quantization.stored import READERS

Json = dict[str, Any]


def group(bits: int = 4, *, kind: str = "int", activations: Any = None, **weights: Any) -> Json:
    named = {"num_bits": bits, "type": kind, "symmetric": True, "strategy": "channel", **weights}
    return {"targets": ["Linear"], "weights": named, "input_activations": activations}


def compressed(*groups: Json, layout: str | None = "pack-quantized", **fields: Any) -> Json:
    named = {f"group_{number}": each for number, each in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": named, **fields}


ALIKE = {"num_bits": 8, "type": "int"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
FLOATS = group(kind="float", strategy="tensor_group", group_size=16)
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head", "*"]}
W8A8 = group(8, activations=ALIKE)
READ = {
    "awq": AWQ,
    "awq-old": {"quant_method": "awq", "w_bit": 4, "q_group_size": 64},
    "awq-gemm": AWQ | {"version": "GEMM"},
    "gptq": GPTQ,
    "gptq-8": GPTQ | {"bits": 8, "group_size": -1},
    "gptq-v2": GPTQ | {"checkpoint_format": "gptq_v2", "sym": False},
    "gptq-packed": GPTQ | {"pack_dtype": "int32"},
    "gptq-left-out": GPTQ | {"dynamic": {"-:.*visual.*": {}}},
    "fp8": FP8,
    "fp8-whole": {"quant_method": "fp8", "modules_to_not_convert": None},
    "fbgemm": {"quant_method": "fbgemm_fp8"},
    "mxfp4": {"quant_method": "mxfp4"},
    "nvfp4": NVFP4,
    "nvfp4-by-groups": {"quant_method": "modelopt_fp4", "quant_algo": "NVFP4", "config_groups": {"group_0": FLOATS}},
    "modelopt-fp8": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
    "compressed-nvfp4": compressed(FLOATS, layout="nvfp4-pack-quantized"),
    "compressed-nvfp4-mixed": compressed(
        FLOATS | {"format": "nvfp4-pack-quantized"}, W8A8 | {"format": "int-quantized"}),
    "w4a16": compressed(group(strategy="group", group_size=128)),
    "w4a16-zeros": compressed(group(strategy="group", group_size=32, symmetric=False, actorder="group")),
    "w8a8": compressed(W8A8, layout="int-quantized", ignore=["lm_head", "re:.*gate"]),
    "mixed": compressed(group() | {"format": "pack-quantized"}, W8A8 | {"format": "int-quantized"}, layout=None),
    "fp8-block": compressed(
        group(8, kind="float", activations={"num_bits": 8, "type": "float"}, strategy="block",
              block_structure=[128, 128]), layout="float-quantized"),
    "dense": compressed(group(), sparsity_config={"format": "dense"}, transform_config={}),
}  # fmt: skip
REFUSED = {
    "awq-gemv": AWQ | {"version": "gemv"},
    "awq-marlin": AWQ | {"version": "marlin"},
    "awq-3": AWQ | {"bits": 3},
    "awq-0": AWQ | {"group_size": 0},
    "gptq-3": GPTQ | {"bits": 3},
    "gptq-marlin": GPTQ | {"is_marlin_format": True},
    "gptq-marlin-format": GPTQ | {"checkpoint_format": "marlin"},
    "gptq-dynamic": GPTQ | {"dynamic": {"+:.*down.*": {"bits": 8}}},
    "gptq-dynamic-group": GPTQ | {"dynamic": {".*": {"group_size": 32}}},
    "gptq-0": GPTQ | {"group_size": 0},
    "fp8-e5m2": FP8 | {"fmt": "e5m2"},
    "fp8-no-block": FP8 | {"weight_block_size": []},
    "sparse-24": compressed(group(), layout="sparse-24-bitmask"),
    "marlin-24": compressed(group(), layout="marlin-24"),
    "sparsity": compressed(group(), sparsity_config={"format": "sparse-24-bitmask"}),
    "transform": compressed(group(), transform_config={"config_groups": {"u": {"type": "hadamard"}}}),
    "w4a8": compressed(group(activations=ALIKE)),
    "w3a16": compressed(group(3)),
    "float4": compressed(group(kind="float")),
    "nvfp4-groups": NVFP4 | {"group_size": 32},
    "nvfp4-group": NVFP4 | {"group_size": None, "config_groups": {"a": group(kind="float", group_size=32)}},
    "nvfp4-awq": NVFP4 | {"quant_algo": "NVFP4_AWQ"},
    "modelopt-mixed": NVFP4 | {"quant_algo": "MIXED_PRECISION"},
    "modelopt-none": {"quant_method": "modelopt"},
    "compressed-nvfp4-int": compressed(group(), layout="nvfp4-pack-quantized"),
    "compressed-nvfp4-8": compressed(FLOATS | {"input_activations": ALIKE}, layout="nvfp4-pack-quantized"),
    "compressed-nvfp4-channel": compressed(group(kind="float"), layout="nvfp4-pack-quantized"),
    "compressed-nvfp4-32": compressed(
        group(kind="float", strategy="tensor_group", group_size=32), layout="nvfp4-pack-quantized"
    ),
    "compressed-nvfp4-outputs": compressed(FLOATS | {"output_activations": ALIKE}, layout="nvfp4-pack-quantized"),
    "activations": compressed(group(8, activations={"num_bits": 4, "type": "int"}), layout="int-quantized"),
    "outputs": compressed(group() | {"output_activations": ALIKE}),
    "second-group": compressed(group(), group(3)),
    "packed-floats": compressed(group(8, kind="float", activations={"num_bits": 8, "type": "float"})),
    "zeros-unpacked": compressed(group(8, activations=ALIKE, symmetric=False), layout="int-quantized"),
    "order-unpacked": compressed(group(8, activations=ALIKE, actorder="group"), layout="int-quantized"),
    "zeros-whole": compressed(group(strategy="tensor", symmetric=False)),
    "order": compressed(group(actorder="other")),
    "strategy": compressed(group(strategy="block", block_structure=[1, 1])),
    "no-groups": compressed(),
    "no-weights": compressed({"targets": ["Linear"]}),
    "class": compressed(group() | {"targets": ["Qwen2Attention"]}),
    "embedding": compressed(group() | {"targets": ["Linear", "Embedding"]}),
    "no-targets": compressed(group() | {"targets": []}),
    "gptq-packed-long": GPTQ | {"pack_dtype": "int64"},
    "expression": compressed(group(), ignore=["re:("]),
    "gguf": {"quant_method": "gguf"},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "none": {"bits": 4},
}


def parsed(section: Any) -> StoredFormat | None:
    return parse_quantization(JsonFields(Path("config.json"), {"quantization_config": section}))


@pytest.mark.parametrize("name", READ)
def test_what_is_read_has_a_layout_and_a_reader(name: str) -> None:
    stored = parsed(READ[name])
    assert stored is not None and stored.layout is not None and type(stored) in READERS
    assert (stored.names == {stored.layout.name}) == stored.layout.has_name, "else engine.quantization contradicts it"


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_names_the_field(name: str) -> None:
    with pytest.raises(ModelLoadError, match=r"^config.json: quantization_config\."):
        parsed(REFUSED[name])


@pytest.mark.parametrize("name", READ)
def test_an_older_name_of_the_section_means_the_same(name: str) -> None:
    section = READ[name]
    assert parse_quantization(JsonFields(Path("config.json"), {"compression_config": section})) == parsed(section)


@pytest.mark.parametrize("section", [{"group_size": 64, "bits": 4}, {"group_size": 32, "bits": 4, "mode": "mxfp4"}])
def test_weights_as_mlx_stores_them_are_refused(section: Json) -> None:
    with pytest.raises(ModelLoadError, match=r"^config.json: quantization is .* MLX"):
        parse_quantization(JsonFields(Path("config.json"), {"quantization": section}))


def test_modelopts_own_file_speaks_where_the_config_is_silent() -> None:
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    fields = JsonFields(Path("config.json"), with_modelopt({"hidden_size": 64}, beside))
    assert fields.positive_int("hidden_size") == 64
    assert parse_quantization(fields) == parsed(NVFP4 | {"exclude_modules": ["lm_head"]})
    assert with_modelopt({"quantization_config": AWQ}, beside) == {"quantization_config": AWQ}
    assert with_modelopt({"a": 1}, {"quantization": {}}) == {"a": 1}
    with pytest.raises(ModelLoadError, match=r"quantization_config is 3 but must be an object"):
        parse_quantization(JsonFields(Path("config.json"), with_modelopt({}, {"quantization": 3})))


VALUES = st.sampled_from([
    None, True, False, 0, 1, 3, 4, 8, 32, -1, 128, 2.0, "", "gemm", "gemv", "gptq", "marlin-24", "int", "float",
    "group", "channel", "tensor", "block", "static", "pack-quantized", "int-quantized", "float-quantized", "dense",
    16, "NVFP4", "FP8", "tensor_group", "nvfp4-pack-quantized",
    [], [1], [128, 128], [0, 1], ["lm_head"], ["re:("], {}, {"a": {}}, {"a": {"bits": 4}}, {"format": "dense"}, ALIKE,
])  # fmt: skip


@st.composite
def sections(draw: st.DrawFn) -> Any:
    """One of those above with other values here and there."""

    def changed(value: Any) -> Any:
        if not isinstance(value, dict):
            return draw(VALUES) if draw(st.integers(0, 9)) == 0 else value
        return {key: changed(each) for key, each in value.items() if draw(st.integers(0, 12))}

    chosen = draw(st.sampled_from([*READ.values(), *REFUSED.values()]))
    extra = draw(
        st.dictionaries(st.sampled_from(["dynamic", "fmt", "version", "format", "sym", "bits"]), VALUES, max_size=1)
    )
    return changed(chosen) | extra


@settings(max_examples=80, deadline=None)
@given(sections())
def test_anything_is_read_or_refused_by_name(section: Any) -> None:
    try:
        stored = parsed(section)
    except ModelLoadError as error:
        assert error.message.startswith("config.json: quantization_config.")
    else:
        assert stored is None or isinstance(stored.layout, WeightLayout)
