"""Models that transformers computes, from quantised checkpoints and with an adapter merged: the floats that are meant,
and what peft merges."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairlead_engine.config import EngineConfig
from fairlead_engine.errors import ConfigError, ModelLoadError
from fairlead_engine.model.shard import ALONE
from fairlead_engine.runner.comparison import LogitModel
from fairlead_engine.runner.model_part import ModelPart
from fairlead_engine_testing.adapters import adapted_by_peft, expert_parameters, write_random_soft_prompt
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.foreign_checkpoints import write_foreign_checkpoint
from fairlead_engine_testing.quantized_checkpoints import (
    write_awq,
    write_compressed_tensors,
    write_dequantized,
    write_finegrained_fp8,
    write_gptq,
)
from fairlead_engine_testing.tiny_families.dense import llama_fields

PROMPT = [7 + (5 * index + index * index // 3) % 200 for index in range(40)]


def logits(folder: Path, **settings: Any) -> torch.Tensor:
    config = EngineConfig(model=str(folder), device="cpu", dtype="float32", block_size=8, num_threads=1, **settings)
    return LogitModel(config).logits(PROMPT)


def load(folder: Path, **settings: Any) -> ModelPart:
    return ModelPart(EngineConfig(model=str(folder), device="cpu", num_threads=1, **settings), ALONE)


@pytest.fixture(scope="module")
def stablelm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With biases, which some quantised layers have."""
    return write_foreign_checkpoint(
        tmp_path_factory.mktemp("models") / "stablelm", "stablelm", use_qkv_bias=True, intermediate_size=128
    )


def compressed(folder: Path, target: Path, meant: Path, name: str) -> None:
    write_compressed_tensors(folder, target, name)
    write_dequantized(folder, meant, name)


def blocks(folder: Path, target: Path, meant: Path) -> None:
    write_finegrained_fp8(folder, target, (32, 32))
    stored = load_file(target / "model.safetensors")
    floats = {}
    for name, tensor in stored.items():
        if not name.endswith("_scale_inv"):
            scale = stored.get(f"{name}_scale_inv")
            wide = None if scale is None else scale.repeat_interleave(32, 0).repeat_interleave(32, 1)
            floats[name] = tensor if wide is None else tensor.float() * wide[: tensor.shape[0], : tensor.shape[1]]
    meant.mkdir()
    (meant / "config.json").write_text((folder / "config.json").read_text())
    save_file(floats, meant / "model.safetensors", metadata={"format": "pt"})


QUANTISED: dict[str, Callable[[Path, Path, Path], object]] = {
    "gptq": write_gptq,
    "gptq in any order": lambda *folders: write_gptq(*folders, act_order=True, has_zeros=True),
    "gptq of 8 bits": lambda *folders: write_gptq(*folders, num_bits=8, group_size=-1),
    "awq": write_awq,
    "compressed-tensors int8": lambda *folders: compressed(*folders, "int8"),
    "compressed-tensors int4": lambda *folders: compressed(*folders, "int4-weight-only"),
    "fp8 in blocks": blocks,
}


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_weights_become_the_floats_that_are_meant(
    kind: str, stablelm: Path, tmp_path: Path, reference: Any, caplog: pytest.LogCaptureFixture
) -> None:
    QUANTISED[kind](stablelm, tmp_path / "stored", tmp_path / "meant")
    found, wanted = logits(tmp_path / "stored"), reference.logits(tmp_path / "meant", PROMPT)
    assert (found - wanted).abs().max() < 1e-3 * wanted.abs().max()
    assert (found - reference.logits(stablelm, PROMPT)).abs().max() > 1e-3 * wanted.abs().max(), "nothing is rounded"
    assert "14 layers are stored quantised and become float32" in caplog.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda each: each.pop("model.layers.0.mlp.up_proj.scales"), "has no tensor model.layers.0.mlp.up_proj.scales"),
        (
            lambda each: each.update({"model.layers.0.mlp.up_proj.scales": torch.ones(3, 3)}),
            "tensor model.layers.0.mlp.up_proj.scales should have shape",
        ),
        (
            lambda each: each.update({"model.layers.0.mlp.up_proj.qweight": torch.ones(3, dtype=torch.int32)}),
            "tensor model.layers.0.mlp.up_proj.qweight has shape .3., and weights of linear layers, with two sizes",
        ),
        (
            lambda each: each.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}),
            "tensor model.norm.weight holds int8, and quantization_config says",
        ),
        (lambda each: each.pop("model.layers.0.input_layernorm.weight"), "lacks 1 tensors.*input_layernorm.weight"),
        (lambda each: each.update({"model.extra": torch.ones(2)}), "holds 1 tensors .*model.extra"),
    ],
)
def test_what_is_damaged_is_named(change: Any, said: str, stablelm: Path, tmp_path: Path) -> None:
    write_gptq(stablelm, tmp_path / "stored", tmp_path / "meant")
    tensors = load_file(tmp_path / "stored/model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "stored/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=said):
        load(tmp_path / "stored")


def adapted(folder: Path, target: Path, **config: Any) -> torch.Tensor:
    """Writes an adapter; what peft computes with it."""
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    parameters = expert_parameters(network)
    model = adapted_by_peft(network, target, parameters, **config)
    with torch.inference_mode():
        return model(torch.tensor([PROMPT])).logits[0]


@pytest.mark.parametrize(
    ("model_type", "changes", "config"),
    [
        ("stablelm", {"use_qkv_bias": True}, {"target_modules": "all-linear"}),
        ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}, {"target_modules": "all-linear"}),
        ("gpt_neox", {}, {"target_modules": ["query_key_value", "dense_4h_to_h"], "use_rslora": True}),
        ("gpt_neox", {}, {"target_modules": ["dense"], "rank_pattern": {"dense": 7}, "layers_to_transform": [1]}),
        ("flex_olmo", {"num_experts": 6, "num_experts_per_tok": 2}, {"target_modules": ["q_proj"]}),
    ],
)
def test_a_merged_adapter_is_what_peft_computes(
    model_type: str, changes: dict[str, Any], config: dict[str, Any], tmp_path: Path, reference: Any
) -> None:
    """Of transposed layers, and of experts as one parameter, too."""
    folder = write_foreign_checkpoint(tmp_path / "model", model_type, **changes)
    wanted = adapted(folder, tmp_path / "adapter", **config)
    found = logits(folder, merged_adapter=str(tmp_path / "adapter"))
    assert (found - wanted).abs().max() < 1e-3 * wanted.abs().max()
    assert (found - reference.logits(folder, PROMPT)).abs().max() > 1e-2 * wanted.abs().max(), "it changes nothing"


def test_an_adapter_is_merged_into_what_quantised_weights_mean(stablelm: Path, tmp_path: Path) -> None:
    write_gptq(stablelm, tmp_path / "stored", tmp_path / "meant")
    wanted = adapted(tmp_path / "meant", tmp_path / "adapter", target_modules="all-linear")
    found = logits(tmp_path / "stored", merged_adapter=str(tmp_path / "adapter"))
    assert (found - wanted).abs().max() < 1e-3 * wanted.abs().max()


def changed(**fields: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def cut(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors.pop(min(tensors))
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed(use_dora=True), "use_dora is True: DoRA"),
        (changed(target_modules=["nothing"]), "target_modules names 'nothing', which is no layer"),
        (changed(r="many"), "r must be a whole number above 0"),
        (
            changed(r=3),
            "lora_A.weight should have shape .3, 128. by adapter_config.json and the model, but has .4, 128",
        ),
        (cut, "has no tensor base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
    ],
)
def test_an_adapter_that_cannot_be_merged_is_refused_by_name(
    change: Any, said: str, stablelm: Path, tmp_path: Path
) -> None:
    adapted(stablelm, tmp_path / "adapter", target_modules="all-linear")
    change(tmp_path / "adapter")
    with pytest.raises(ConfigError, match=f"(?s)merged-adapter: cannot be merged: .*{said}"):
        load(stablelm, merged_adapter=str(tmp_path / "adapter"))


def test_what_takes_adapters_while_it_runs_merges_none_and_soft_prompts_are_none(
    stablelm: Path, tmp_path: Path
) -> None:
    llama = write_random_checkpoint(tmp_path / "llama", llama_fields())
    with pytest.raises(ConfigError, match="merged-adapter: is set, and this model takes adapters while it runs"):
        load(llama, merged_adapter=str(tmp_path))
    soft = write_random_soft_prompt(tmp_path / "soft", llama)
    with pytest.raises(ConfigError, match="is a soft prompt, which has no weights to merge"):
        load(stablelm, merged_adapter=str(soft))
