"""GPTQ, AWQ and packed compressed-tensors: whole models against transformers on the floats that their integers mean."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fairlead_engine.errors import ModelLoadError
from fairlead_engine.model.checkpoint import WHOLE, Checkpoint
from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine.model.quantization.dequantized_linear import tell_decoding
from fairlead_engine.model.quantization.quantized_weight import pack, unpack
from fairlead_engine.model.quantization.stored import choose_source
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.greedy_answers import greedy_answers, small_engine
from fairlead_engine_testing.quantized_checkpoints import WEIGHTS, is_quantized, write_awq, write_gptq
from fairlead_engine_testing.tiny_families import FAMILIES
from fairlead_engine_testing.tiny_families.dense import llama_fields

pytestmark = pytest.mark.matrix

PROMPTS = [[5 + 7 * i % 200 for i in range(start, start + length)] for start, length in ((0, 3), (3, 40))]
CPU = torch.device("cpu")
GPTQ = [
    {},
    {"act_order": True},
    {"act_order": True, "has_zeros": True, "with_head": True},
    {"group_size": 64, "has_zeros": True},
    {"group_size": -1, "has_zeros": True, "version": 2},
    {"num_bits": 8, "act_order": True, "has_zeros": True},
    {"num_bits": 8, "group_size": -1, "version": 2},
]
AWQ = [{}, {"has_zeros": False}, {"group_size": 64, "with_head": True}]
CASES = [(write_gptq, options) for options in GPTQ] + [(write_awq, options) for options in AWQ]


def serve(folder: Path) -> list[list[int]]:
    return greedy_answers(small_engine(folder), PROMPTS, 8)


@pytest.mark.parametrize(("write", "options"), CASES)
def test_a_model_is_the_one_that_its_integers_mean(write, options, reference, tmp_path: Path) -> None:
    floats = write_random_checkpoint(tmp_path / "floats", llama_fields(intermediate_size=128))
    stored = write(floats, tmp_path / "stored", tmp_path / "meant", **options)
    for prompt, output in zip(PROMPTS, serve(stored), strict=True):
        reference.check_greedy(tmp_path / "meant", prompt, output)


@pytest.mark.parametrize("family", ["phi3", "mixtral"])
@pytest.mark.parametrize("write", [write_gptq, write_awq])
def test_fused_projections_and_experts_are_read(write, family: str, tmp_path: Path) -> None:
    floats = write_random_checkpoint(tmp_path / "floats", FAMILIES[family](intermediate_size=128))
    stored = write(floats, tmp_path / "stored", tmp_path / "meant")
    assert serve(stored) == serve(tmp_path / "meant")


@pytest.mark.parametrize(("write", "options"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_and_columns_of_a_rank_are_those_of_the_whole(write, options, dtype, tmp_path: Path) -> None:
    """Parts that begin and end within a word, and columns that keep the groups they had."""
    floats = write_random_checkpoint(tmp_path / "floats", llama_fields(intermediate_size=128))
    stored = write(floats, tmp_path / "stored", tmp_path / "meant", **options)
    source = choose_source(None, read_config(stored).quantization)
    meant = load_file(tmp_path / "meant" / WEIGHTS)
    assert source is not None
    with Checkpoint(stored, dtype, CPU) as checkpoint:
        for key, weight in meant.items():
            if not is_quantized(key):
                continue
            name, columns = key.removesuffix(".weight"), weight.shape[1]
            whole = source.read(checkpoint, name, weight.shape, WHOLE)
            torch.testing.assert_close(whole.dequantized(), weight, rtol=1e-5, atol=1e-6)
            part = source.read(checkpoint, name, weight.shape, slice(5, 21))
            assert torch.equal(part.dequantized(), whole.dequantized()[5:21])
            half = whole.columns(columns // 2, columns)
            assert torch.equal(half.dequantized(), whole.dequantized()[:, columns // 2 :])
            x = torch.randn(4, columns // 2, generator=torch.Generator().manual_seed(0)).to(dtype)
            weight_format = source.format_of(checkpoint, name, False)
            assert weight_format is not None
            found, wanted = weight_format.linear(half, None, dtype)(x).float(), x.float() @ half.dequantized().t()
            torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.03 if dtype is torch.bfloat16 else 1e-4)


def test_projections_of_one_input_may_be_stored_in_different_ways(reference, tmp_path: Path) -> None:
    """Left as floats, or in other groups: computed side by side."""
    floats = write_random_checkpoint(tmp_path / "floats", llama_fields(intermediate_size=128))
    stored = write_gptq(floats, tmp_path / "stored", tmp_path / "meant", act_order=True, has_zeros=True)
    weights, meant = load_file(stored / WEIGHTS), load_file(tmp_path / "meant" / WEIGHTS)
    plain = load_file(floats / WEIGHTS)
    for layer in (0, 1):
        name = f"model.layers.{layer}.self_attn.k_proj"
        for kind in ("qweight", "qzeros", "scales", "g_idx", "bias"):
            del weights[f"{name}.{kind}"]
        weights[f"{name}.weight"] = meant[f"{name}.weight"] = plain[f"{name}.weight"]
    save_file(weights, stored / WEIGHTS, metadata={"format": "pt"})
    save_file(meant, tmp_path / "meant" / WEIGHTS, metadata={"format": "pt"})
    for prompt, output in zip(PROMPTS, serve(stored), strict=True):
        reference.check_greedy(tmp_path / "meant", prompt, output)
    model = load_model(stored, read_config(stored), torch.float32, CPU)
    assert model.num_parameters == load_model(floats, read_config(floats), torch.float32, CPU).num_parameters


def test_columns_in_any_order_go_through_the_packed_product(tmp_path: Path) -> None:
    floats = write_random_checkpoint(tmp_path / "floats", llama_fields(intermediate_size=128))
    stored = write_gptq(floats, tmp_path / "stored", tmp_path / "meant", act_order=True)
    model = load_model(stored, read_config(stored), torch.float32, CPU)
    plain = load_model(floats, read_config(floats), torch.float32, CPU)
    assert type(model.layers[0].feed_forward.down).__name__ == "ReorderedLinear"
    assert model.weight_bytes < 0.55 * plain.weight_bytes


def test_the_log_says_once_what_is_decoded_for_each_product(tmp_path: Path, caplog) -> None:
    tell_decoding.cache_clear()
    floats = write_random_checkpoint(tmp_path / "floats", llama_fields(intermediate_size=128))
    stored = write_gptq(floats, tmp_path / "stored", tmp_path / "meant", num_bits=8)
    with caplog.at_level("INFO"):
        load_model(stored, read_config(stored), torch.float32, CPU)
    told = [record.getMessage() for record in caplog.records if "decoded for each product" in record.getMessage()]
    assert len(told) == 1 and "int8-weight-only" in told[0] and "groups of 32" in told[0]


@pytest.mark.parametrize("name", ["weight_zero_point", "weight_g_idx"])
def test_compressed_tensors_with_zero_points_and_orders(name: str, reference, tmp_path: Path) -> None:
    """The same integers as GPTQ's, along the other dimension."""
    options = {"act_order": name == "weight_g_idx", "has_zeros": True}
    floats = write_random_checkpoint(tmp_path / "floats", llama_fields(intermediate_size=128))
    stored = write_gptq(floats, tmp_path / "stored", tmp_path / "meant", version=2, **options)
    weights = load_file(stored / WEIGHTS)
    for key in [key for key in weights if key.endswith(".qweight")]:
        layer = key.removesuffix(".qweight")
        del weights[f"{layer}.bias"]
        weights[f"{layer}.weight_packed"] = pack(unpack(weights.pop(key).t().contiguous(), 4), 4)
        zeros = unpack(weights.pop(f"{layer}.qzeros"), 4)
        weights[f"{layer}.weight_zero_point"] = pack(zeros, 4).t().contiguous()
        zeros = unpack(weights[f"{layer}.weight_zero_point"].t().contiguous(), 4)
        weights[f"{layer}.weight_scale"] = weights.pop(f"{layer}.scales").t().contiguous()
        weights[f"{layer}.weight_shape"] = torch.tensor([len(weights[f"{layer}.weight_scale"]), 0])
        weights[f"{layer}.weight_g_idx"] = weights.pop(f"{layer}.g_idx")
        if not options["act_order"]:
            del weights[f"{layer}.weight_g_idx"]
    save_file(weights, stored / WEIGHTS, metadata={"format": "pt"})
    group = {"type": "int", "num_bits": 4, "symmetric": False, "strategy": "group", "group_size": 32}
    group["actorder"] = "group" if options["act_order"] else None
    config = json.loads((stored / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": group, "input_activations": None}},
        "ignore": ["lm_head"],
    }
    (stored / "config.json").write_text(json.dumps(config))
    for prompt, output in zip(PROMPTS, serve(stored), strict=True):
        reference.check_greedy(tmp_path / "meant", prompt, output)


def change(folder: Path, **fields: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= fields
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("write", "fields", "says"),
    [
        (write_gptq, {"bits": 3}, "bits is 3"),
        (write_gptq, {"bits": "four"}, "bits is 'four'"),
        (write_gptq, {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        (write_gptq, {"group_size": 0}, "group_size is 0"),
        (write_gptq, {"group_size": -2}, "group_size is -2"),
        (write_gptq, {"dynamic": {"+:.*down.*": {"bits": 8}}}, "bits is 8"),
        (write_awq, {"bits": 8}, "bits is 8"),
        (write_awq, {"version": "gemv"}, "version is 'gemv'"),
        (write_awq, {"group_size": True}, "group_size is True"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_field(write, fields, says: str, tmp_path: Path) -> None:
    floats = write_random_checkpoint(tmp_path / "floats", llama_fields())
    stored = write(floats, tmp_path / "stored", tmp_path / "meant")
    change(stored, **fields)
    with pytest.raises(ModelLoadError, match="quantization_config") as raised:
        read_config(stored)
    assert says in raised.value.message


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("integers")
    floats = write_random_checkpoint(folder / "floats", llama_fields(intermediate_size=128))
    return {
        "gptq": write_gptq(floats, folder / "gptq", folder / "a", act_order=True),
        "awq": write_awq(floats, folder / "awq", folder / "b"),
    }


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    method=st.sampled_from(["gptq", "awq"]),
    damage=st.sampled_from(["drop", "dtype", "shape", "value", "config"]),
)
def test_damaged_checkpoints_are_refused_by_tensor_or_field(data, method, damage, stored, tmp_path_factory) -> None:
    source = stored[method]
    folder = tmp_path_factory.mktemp("damaged")
    weights = load_file(source / WEIGHTS)
    config = json.loads((source / "config.json").read_text())
    layer = "model.layers.1.mlp.up_proj"
    key = data.draw(st.sampled_from(sorted(key for key in weights if key.startswith(layer) and "bias" not in key)))
    if damage == "drop":
        del weights[key]
    elif damage == "dtype":
        weights[key] = weights[key].to(torch.float64 if weights[key].dtype is torch.int32 else torch.int32)
    elif damage == "shape":
        weights[key] = weights[key][: data.draw(st.integers(0, len(weights[key]) - 1))]
    elif damage == "value":
        weights[key].view(-1)[3] = float("nan") if weights[key].is_floating_point() else -7
    else:
        name = data.draw(st.sampled_from(["group_size", "bits", "zero_point", "version", "checkpoint_format"]))
        config["quantization_config"][name] = data.draw(
            st.one_of(st.integers(-3, 2**70), st.text(max_size=3), st.none(), st.lists(st.integers(), max_size=2))
        )
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    try:
        load_model(folder, read_config(folder), torch.float32, CPU)
    except ModelLoadError as error:
        assert "quantization_config" in error.message or (layer if damage != "config" else "layers.0") in error.message
    else:
        assert damage in ("value", "config") or key.endswith("g_idx")  # other integers are other weights
