"""Checkpoints of 4-bit floats with scales for each 16 inputs, and of ModelOpt, against their meaning written out."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fairlead_engine.errors import ConfigError, ModelLoadError
from fairlead_engine.model.checkpoint import WHOLE, Checkpoint
from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine.model.quantization.stored import choose_source
from fairlead_engine.model.shard import Shard
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.greedy_answers import greedy_answers, small_engine
from fairlead_engine_testing.quantized_checkpoints import WEIGHTS, write_finegrained_fp8, write_mxfp4, write_nvfp4
from fairlead_engine_testing.tiny_families import FAMILIES
from fairlead_engine_testing.tiny_families.dense import llama_fields
from fairlead_engine_testing.tiny_families.experts import gpt_oss_fields

pytestmark = pytest.mark.matrix

NUM_NEW = 8
PROMPTS = [[5 + 7 * i % 200 for i in range(start, start + length)] for start, length in ((0, 3), (3, 40), (9, 17))]
MAKERS = ("modelopt", "compressed-tensors")
LAYER = "model.layers.1.mlp.down_proj"
CPU = torch.device("cpu")


def number(code: int) -> float:
    """A 4-bit float: sign, two bits of exponent, one of mantissa."""
    sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
    size = 2.0 ** (exponent - 1) * (1 + mantissa / 2) if exponent else mantissa / 2
    return -size if sign else size


def meaning(weights: dict[str, Tensor], layer: str) -> Tensor:
    """The floats of a layer that is stored as NVFP4, a byte and a scale at a time."""
    packed = weights.get(f"{layer}.weight_packed", weights.get(f"{layer}.weight"))
    scales = weights[f"{layer}.weight_scale"].float()
    if f"{layer}.weight_scale_2" in weights:
        scales = scales * weights[f"{layer}.weight_scale_2"]
    else:
        scales = scales / weights[f"{layer}.weight_global_scale"]
    numbers = [[number(each) for byte in row for each in (byte & 15, byte >> 4)] for row in packed.tolist()]
    floats = torch.tensor(numbers)
    for column in range(floats.shape[1]):
        floats[:, column] *= scales[:, column // 16]
    return floats


def write_meant(stored: Path, target: Path) -> Path:
    target.mkdir()
    config = json.loads((stored / "config.json").read_text())
    config.pop("quantization_config", None)
    (target / "config.json").write_text(json.dumps(config))
    weights = load_file(stored / WEIGHTS)
    floats = {}
    for key, weight in weights.items():
        if key.endswith("weight_scale"):
            layer = key.removesuffix(".weight_scale")
            floats[f"{layer}.weight"] = meaning(weights, layer)
        elif weight.dtype is torch.float32 and not key.endswith(("scale", "scale_2")):
            floats[key] = weight
    save_file(floats, target / WEIGHTS, metadata={"format": "pt"})
    return target


def serve(folder: Path, **settings) -> list:
    return greedy_answers(small_engine(folder, max_num_batched_tokens=256, **settings), PROMPTS, NUM_NEW, per_step=100)


@pytest.mark.parametrize(("by", "beside"), [("modelopt", False), ("modelopt", True), ("compressed-tensors", False)])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "phi3"])
def test_a_model_is_the_one_that_its_4_bit_floats_mean(family, by, beside, reference, tmp_path, caplog) -> None:
    sizes = {"max_position_embeddings": 256}
    floats = write_random_checkpoint(tmp_path / "floats", FAMILIES[family](**sizes))
    stored = write_nvfp4(floats, tmp_path / "stored", by, beside=beside)
    meant = write_meant(stored, tmp_path / "meant")
    caplog.set_level("INFO")
    outputs = serve(stored)
    assert "NVFP4 weights become 8-bit integers while they are loaded" in caplog.text
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        reference.check_greedy(meant, prompt, output)
    with pytest.raises(ConfigError, match="quantization: int8 contradicts the checkpoint, whose weights are nvfp4"):
        serve(stored, quantization="int8")


@pytest.mark.parametrize("by", MAKERS)
def test_every_weight_is_read_to_the_last_bit(by: str, tmp_path: Path) -> None:
    floats = write_random_checkpoint(
        tmp_path / "floats", llama_fields(hidden_size=80, head_dim=12, intermediate_size=112)
    )
    stored = write_nvfp4(floats, tmp_path / "stored", by)
    weights, original = load_file(stored / WEIGHTS), load_file(floats / WEIGHTS)
    source = choose_source(None, read_config(stored).quantization)
    layers = [key.removesuffix(".weight_scale") for key in weights if key.endswith(".weight_scale")]
    assert len(layers) == 2 * 7
    with Checkpoint(stored, torch.float32, CPU) as checkpoint:
        for layer in layers:
            wanted = meaning(weights, layer)
            found = source.read(checkpoint, layer, tuple(wanted.shape), WHOLE)
            assert torch.equal(found.dequantized(), wanted)
            some = source.read(checkpoint, layer, tuple(wanted.shape), slice(3, 11))
            assert torch.equal(some.dequantized(), wanted[3:11])
            weight = original[f"{layer}.weight"]
            assert float((wanted - weight).norm() / weight.norm()) < 0.15


def test_ranks_keep_parts_of_4_bit_floats(tmp_path: Path, monkeypatch) -> None:
    floats = write_random_checkpoint(tmp_path / "floats", llama_fields(hidden_size=64, intermediate_size=96))
    stored = write_nvfp4(floats, tmp_path / "stored")
    monkeypatch.setattr(Shard, "sum", lambda shard, part: part)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    whole, *parts = (
        load_model(stored, read_config(stored), torch.float32, CPU, None, shard).layers[0].feed_forward(x)
        for shard in (Shard(), Shard(0, 2), Shard(1, 2))
    )
    torch.testing.assert_close(parts[0] + parts[1], whole)
    with pytest.raises(
        ConfigError, match=r"tensor-parallel-size: is 4, which divides columns of .* that have one scale"
    ):
        load_model(stored, read_config(stored), torch.float32, CPU, None, Shard(0, 4))


@pytest.mark.parametrize("algorithm", ["FP8", "FP8_PER_CHANNEL_PER_TOKEN"])
def test_8_bit_floats_of_modelopt_are_those_of_others(algorithm: str, tmp_path: Path) -> None:
    floats = write_random_checkpoint(tmp_path / "floats", llama_fields())
    stored = write_finegrained_fp8(floats, tmp_path / "stored", None)
    wanted = serve(stored)
    weights = load_file(stored / WEIGHTS)
    for key in [key for key in weights if key.endswith("_scale_inv")]:
        layer, scale = key.removesuffix(".weight_scale_inv"), weights.pop(key)
        rows = len(weights[f"{layer}.weight"])
        weights[f"{layer}.weight_scale"] = scale if algorithm == "FP8" else scale.repeat(rows)
        weights[f"{layer}.input_scale"] = torch.tensor(3.0)
        if layer.endswith("k_proj"):
            weights[f"{layer}.k_scale"] = torch.tensor(2.0)
    save_file(weights, stored / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((stored / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"]}
    (stored / "config.json").write_text(json.dumps(config))
    assert serve(stored) == wanted
    assert serve(stored, quantization="fp8") == wanted


Harm = Callable[[dict[str, Tensor]], object]


def replaced(kind: str, value: Callable[[Tensor], Tensor]) -> Harm:
    def harm(weights: dict[str, Tensor]) -> None:
        weights[f"{LAYER}.{kind}"] = value(weights[f"{LAYER}.{kind}"]).contiguous()

    return harm


def spoilt(scales: Tensor) -> Tensor:
    scales.view(torch.uint8)[2, 1] = 0x7F
    return scales


HARMS: dict[str, tuple[str, Harm, str]] = {
    "values cut": ("modelopt", replaced("weight", lambda x: x[:, :-1]), rf"{LAYER}\.weight should have shape"),
    "values odd": ("compressed-tensors", replaced("weight_packed", lambda x: x[:-1]), r"weight_packed should have"),
    "values as floats": ("modelopt", replaced("weight", lambda x: x.float()), rf"{LAYER}\.weight holds float32"),
    "scales cut": ("modelopt", replaced("weight_scale", lambda x: x[:, 1:]), r"weight_scale should have shape"),
    "scales as floats": ("modelopt", replaced("weight_scale", lambda x: x.float()), r"weight_scale holds float32"),
    "scale no number": ("modelopt", replaced("weight_scale", spoilt), r"weight_scale holds what is no finite number"),
    "two wholes": ("modelopt", replaced("weight_scale_2", lambda x: x.repeat(2)), r"weight_scale_2 should have shape"),
    "whole infinite": ("modelopt", replaced("weight_scale_2", lambda x: x / 0), r"weight_scale_2 holds what is no fin"),
    "whole 0": ("compressed-tensors", replaced("weight_global_scale", lambda x: x * 0), r"weight_global_scale holds"),
    "no whole": ("compressed-tensors", lambda x: x.pop(f"{LAYER}.weight_global_scale"), r"no tensor .*global"),
    "no scales": ("modelopt", lambda x: x.pop(f"{LAYER}.weight_scale"), rf"no tensor {LAYER}.weight_scale"),
    "left over": ("modelopt", lambda x: x.update({f"{LAYER}.pre_quant_scale": torch.ones(4)}), "pre_quant_scale"),
}  # fmt: skip


@pytest.mark.parametrize("case", HARMS)
def test_a_tensor_that_does_not_fit_is_named(case: str, tmp_path: Path) -> None:
    by, harm, says = HARMS[case]
    stored = write_nvfp4(write_random_checkpoint(tmp_path / "floats", llama_fields()), tmp_path / "stored", by)
    weights = load_file(stored / WEIGHTS)
    harm(weights)
    save_file(weights, stored / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=says):
        load_model(stored, read_config(stored), torch.float32, CPU)


@pytest.mark.parametrize("by", MAKERS)
def test_inputs_that_no_scales_divide_are_refused_by_the_tensor(by: str, tmp_path: Path) -> None:
    floats = write_random_checkpoint(tmp_path / "floats", llama_fields(intermediate_size=96))
    stored = write_nvfp4(floats, tmp_path / "stored", by)
    config = json.loads((stored / "config.json").read_text())
    (stored / "config.json").write_text(json.dumps({**config, "intermediate_size": 97}))
    with pytest.raises(ModelLoadError, match=r"gate_proj\.weight\w* should have shape \[97"):
        load_model(stored, read_config(stored), torch.float32, CPU)
    (stored / "config.json").write_text(json.dumps({**config, "hidden_size": 72, "head_dim": 16}))
    with pytest.raises(ModelLoadError):
        load_model(stored, read_config(stored), torch.float32, CPU)
    source = choose_source(None, read_config(stored).quantization)
    with (
        Checkpoint(stored, torch.float32, CPU) as checkpoint,
        pytest.raises(
            ModelLoadError, match=rf"tensor {LAYER}\.weight_scale should have a scale for each 16 inputs .* has 97"
        ),
    ):
        source.read(checkpoint, LAYER, (64, 97), WHOLE)


def test_inputs_that_32_do_not_divide_are_refused_by_the_tensor(tmp_path: Path) -> None:
    stored = write_mxfp4(write_random_checkpoint(tmp_path / "floats", gpt_oss_fields()), tmp_path / "stored")
    source = choose_source(None, read_config(stored).quantization)
    with (
        Checkpoint(stored, torch.float32, CPU) as checkpoint,
        pytest.raises(ModelLoadError, match=r"tensor any\.blocks should have a scale for each 32 inputs .* has 33"),
    ):
        source.read(checkpoint, "any", (64, 33), WHOLE)
