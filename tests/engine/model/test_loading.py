"""Checkpoints load whole or not at all, and what does not fit is named: file, tensor, expected and found shape."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine_testing.checkpoints import tensor_shapes, write_random_checkpoint
from fairlead_engine_testing.tiny_families import FAMILIES
from fairlead_engine_testing.tiny_families.dense import llama_fields
from fairlead_engine_testing.tiny_families.experts import mixtral_fields
from fairlead_engine_testing.tiny_families.latent import deepseek_v3_fields, deepseek_v32_fields

CPU = torch.device("cpu")
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return load_model(folder, read_config(folder), dtype, CPU)


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS)


def refusal(folder: Path) -> ModelLoadError:
    with pytest.raises(ModelLoadError) as raised:
        load(folder)
    return raised.value


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_random_checkpoint(tmp_path / "model", llama_fields())


@pytest.fixture
def sharded(tmp_path) -> Path:
    return write_random_checkpoint(tmp_path / "sharded", llama_fields(), num_shards=2)


@pytest.mark.parametrize(
    "fields",
    [
        llama_fields(attention_bias=True, mlp_bias=True),
        *(family(tie_word_embeddings=False) for family in FAMILIES.values()),
    ],
)
def test_parameters_and_bytes_are_counted(fields, tmp_path):
    model = load(write_random_checkpoint(tmp_path, fields), torch.bfloat16)
    expected = sum(torch.Size(shape).numel() for _, shape in tensor_shapes(model.config))
    assert model.num_parameters == expected
    whole = (
        "e_score_correction_bias",
        "conv1d.weight",
        "conv1d.bias",
        "conv.conv.weight",
        "expert_bias",
        "A_log",
        "dt_bias",
        "mamba.D",
        "mixer.D",
        "per_expert_scale",
    )
    whole += ("k_norm.weight", "k_norm.bias") if model.config.indexed else ()
    kept = [shape for name, shape in tensor_shapes(model.config) if name.endswith(whole)]
    assert model.weight_bytes == 2 * expected + 2 * sum(torch.Size(shape).numel() for shape in kept)  # as float32


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_weights_are_converted_to_the_dtype_asked_for(stored, wanted, tmp_path):
    folder = write_random_checkpoint(tmp_path, llama_fields(dtype=stored))
    found = load(folder, wanted).embedding.weight
    assert found.dtype is wanted
    assert torch.equal(found, load_file(folder / WEIGHTS)["model.embed_tokens.weight"].to(wanted))


@pytest.mark.parametrize(
    ("edit", "reason", "parts"),
    [
        (
            lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"),
            ModelLoadReason.MISSING_TENSOR,
            ("model.layers.1.mlp.up_proj.weight", "[96, 64]"),
        ),
        (
            lambda tensors: tensors.update({"model.layers.0.self_attn.k_proj.weight": torch.zeros(16, 64)}),
            ModelLoadReason.TENSOR_SHAPE_MISMATCH,
            ("model.layers.0.self_attn.k_proj.weight", "[32, 64]", "[16, 64]", WEIGHTS),
        ),
        (
            lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}),
            ModelLoadReason.UNEXPECTED_TENSOR,
            ("model.layers.0.self_attn.q_proj.bias",),
        ),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}),
            ModelLoadReason.CHECKPOINT_INVALID,
            ("model.norm.weight",),
        ),
    ],
    ids=["missing", "misshapen", "not accounted for", "integers"],
)
def test_a_tensor_that_is_no_part_of_the_model_is_named(edit, reason, parts, folder):
    change(folder, edit)
    error = refusal(folder)
    assert error.reason == reason
    assert [part for part in parts if part not in error.message] == []


@pytest.mark.parametrize("fields", [deepseek_v3_fields, deepseek_v32_fields])
def test_a_layer_for_multi_token_prediction_is_left_out_where_the_config_tells_of_it(fields, tmp_path):
    folder = write_random_checkpoint(tmp_path, fields(num_nextn_predict_layers=1))
    alone = load(folder).num_parameters
    tensors = load_file(folder / "model.safetensors")
    tensors |= {name.replace(".1.", ".2.", 1): each for name, each in tensors.items() if ".layers.1." in name}
    tensors["model.layers.2.eh_proj.weight"] = torch.ones(64, 128)
    save_file({name: each.clone() for name, each in tensors.items()}, folder / "model.safetensors")
    assert load(folder).num_parameters == alone
    (folder / "config.json").write_text(json.dumps(fields()))
    assert "model.layers.2." in refusal(folder).message


def test_an_experts_missing_and_unexpected_tensors_are_named(tmp_path):
    folder = write_random_checkpoint(tmp_path, mixtral_fields())
    name = "model.layers.1.block_sparse_moe.experts.{}.w3.weight"
    change(folder, lambda tensors: tensors.update({name.format(4): torch.zeros(96, 64)}))
    error = refusal(folder)
    assert error.reason == ModelLoadReason.UNEXPECTED_TENSOR
    assert name.format(4) in error.message
    change(folder, lambda tensors: tensors.pop(name.format(3)))
    error = refusal(folder)
    assert error.reason == ModelLoadReason.MISSING_TENSOR
    assert f"{name.format(3)}, expected with shape [96, 64]" in error.message


def test_stored_rotary_frequencies_and_a_stored_tied_head_are_ignored(tmp_path):
    folder = write_random_checkpoint(tmp_path, llama_fields(tie_word_embeddings=True))
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8), "lm_head.weight": torch.ones(256, 64)}
    change(folder, lambda tensors: tensors.update(extra))
    assert load(folder).config.tie_word_embeddings


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_truncated_file_is_named(keep, folder):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:keep])
    error = refusal(folder)
    assert error.reason == ModelLoadReason.CHECKPOINT_INVALID
    assert str(folder / WEIGHTS) in error.message


def test_a_file_that_may_not_be_read_is_not_called_missing(folder, monkeypatch):
    def denied(self: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    with monkeypatch.context() as patched:
        patched.setattr("fairlead_engine.model.checkpoint.check_readable", denied)
        error = refusal(folder)
    assert error.reason == ModelLoadReason.CHECKPOINT_INVALID
    assert f"{folder / WEIGHTS} cannot be read (Permission denied)" in error.message


def test_a_folder_without_weights_says_what_is_read(folder):
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    error = refusal(folder)
    assert error.reason == ModelLoadReason.CHECKPOINT_INVALID
    assert WEIGHTS in error.message
    assert "convert" in error.message


def test_a_missing_shard_is_named(sharded):
    (sharded / "model-00002-of-00002.safetensors").unlink()
    error = refusal(sharded)
    assert error.reason == ModelLoadReason.CHECKPOINT_INVALID
    assert "model-00002-of-00002.safetensors" in error.message


def test_a_tensor_that_its_shard_does_not_hold_is_named(sharded):
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = next(
        file for file in set(index["weight_map"].values()) if file != index["weight_map"]["model.norm.weight"]
    )
    (sharded / INDEX).write_text(json.dumps(index))
    error = refusal(sharded)
    assert error.reason == ModelLoadReason.MISSING_TENSOR
    assert "model.norm.weight" in error.message


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../b.safetensors"}}'])
def test_an_unusable_index_is_named(text, sharded):
    (sharded / INDEX).write_text(text)
    error = refusal(sharded)
    assert error.reason == ModelLoadReason.CHECKPOINT_INVALID
    assert INDEX in error.message
