"""GGUF files of every family, in llama.cpp's conventions, against transformers on the weights that they mean."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from fairlead_engine.core.engine import Engine
from fairlead_engine.errors import ModelLoadError
from fairlead_engine.model.gguf_families import FAMILIES as READ
from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine.model.shard import Shard
from fairlead_engine_testing.adapted_models import config_of, requests_of_all, serve
from fairlead_engine_testing.adapters import write_random_adapter
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.gguf_families import WRITTEN, architecture_of, write_family
from fairlead_engine_testing.greedy_answers import greedy_answers, small_engine
from fairlead_engine_testing.tiny_families import FAMILIES

pytestmark = pytest.mark.matrix

PROMPTS = [[5 + 7 * i % 200 for i in range(start, start + length)] for start, length in ((0, 3), (3, 40))]
CPU = torch.device("cpu")
SLIDING, WHOLE = "sliding_attention", "full_attention"
DEEPSEEK_ROPE = {
    "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "mscale": 0.8, "mscale_all_dim": 0.8,
    "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "bamba": {"partial_rotary_factor": 0.5},
    "qwen3_5": {"linear_value_head_dim": 32},
    "cohere2": {"num_hidden_layers": 4, "layer_types": [SLIDING] * 3 + [WHOLE]},
    "deepseek_v3": {"rope_scaling": DEEPSEEK_ROPE},
    "deepseek_v32": {"rope_scaling": DEEPSEEK_ROPE},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16, "num_hidden_layers": 6, "layer_types": [SLIDING] * 5 + [WHOLE]},
    "gpt_oss": {"swiglu_limit": 7.0},
    "llama4": {
        "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "attention_chunk_size": 8192, "floor_scale": 8192,
        "attn_scale": 0.1,
    },
    "lfm2_moe": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": None},
    "smollm3": {"num_hidden_layers": 5, "no_rope_layers": [1, 1, 1, 0, 1]},
}  # fmt: skip
"""What a file does not say, as llama.cpp has it."""


def write(family: str, folder: Path, kind: Kind = Kind.F32, **changes: Any) -> Path:
    fields = FAMILIES[family](**{**CHANGES.get(family, {}), "max_position_embeddings": 256, **changes})
    floats = write_random_checkpoint(folder / "floats", fields)
    return write_family(floats, folder / "model.gguf", folder / "meant", kind)


def check(family: str, folder: Path, reference, kind: Kind, **changes: Any) -> None:
    file = write(family, folder, kind, **changes)
    for prompt, output in zip(PROMPTS, greedy_answers(small_engine(file), PROMPTS, 8), strict=True):
        reference.check_greedy(folder / "meant", prompt, output)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0], ids=["floats", "blocks"])
@pytest.mark.parametrize("family", WRITTEN)
def test_a_file_is_the_model_that_transformers_computes(family: str, kind: Kind, reference, tmp_path: Path) -> None:
    check(family, tmp_path, reference, kind)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "granite_without_experts": ("granite_hybrid", {"num_local_experts": 0, "num_experts_per_tok": 0}),
    "falcon_with_norms": ("falcon_h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    "nemotron_without_experts": ("nemotron_h", {"hybrid_override_pattern": "M-*M", "num_hidden_layers": 4}),
}
"""Models of families whose files differ."""


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_file_of_a_variant_is_the_model(variant: str, reference, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    check(family, tmp_path, reference, Kind.Q8_0, **changes)


def test_activations_without_their_numbers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf.GGUFWriter, "add_xielu_beta", lambda writer, values: None)
    file = write("apertus", tmp_path)
    with pytest.raises(ModelLoadError, match=r"has no list of 2 numbers as xielu\.beta"):
        load_model(file, read_config(file), torch.float32, CPU)


def test_first_files_of_qwen3_next_have_projections_together(tmp_path: Path, reference) -> None:
    write("qwen3_next", tmp_path, Kind.Q8_0)
    file = write_family(tmp_path / "floats", tmp_path / "fused.gguf", tmp_path / "same", Kind.Q8_0, are_fused=True)
    for prompt, output in zip(PROMPTS, greedy_answers(small_engine(file), PROMPTS, 8), strict=True):
        reference.check_greedy(tmp_path / "meant", prompt, output)


def test_adapters_of_granite_fit_its_files(tmp_path: Path) -> None:
    """Where gate and up projections lie in two tensors, and in one of the checkpoint and the adapter."""
    file = write("granite_hybrid", tmp_path, **VARIANTS["granite_without_experts"][1])
    targets = ("q_proj", "k_proj", "input_linear", "output_linear")
    adapter = write_random_adapter(tmp_path / "adapter", tmp_path / "meant", seed=1, targets=targets, rank=4, alpha=16)
    answers = []
    for model in (file, tmp_path / "meant"):
        served = serve(Engine(config_of(model, {"a": adapter}, max_loras=1)), requests_of_all(["a"], 20))
        answers.append({name: answer.tokens for name, answer in served.items()})
    assert answers[0] == answers[1]
    plain = greedy_answers(small_engine(file), [request.prompt_token_ids for request in requests_of_all(["a"], 20)], 6)
    assert plain != list(answers[0].values())


LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * each for each in range(8)],
    "long_factor": [1.5 + 0.3 * each for each in range(8)],
}


def test_phi_has_factors_of_long_contexts(reference, tmp_path: Path) -> None:
    changes = {"rope_scaling": LONGROPE, "original_max_position_embeddings": 64, "max_position_embeddings": 128}
    file = write("phi3", tmp_path, **changes)
    rope, wanted = read_config(file).rope, read_config(tmp_path / "floats").rope
    assert rope.short_factors == pytest.approx(wanted.short_factors) and rope.factor == wanted.factor == 2.0
    assert rope.long_factors == pytest.approx(wanted.long_factors) and rope.scale == pytest.approx(wanted.scale)
    for prompt, output in zip(PROMPTS, greedy_answers(small_engine(file), PROMPTS, 8), strict=True):
        assert len(prompt + output) < 64 and len(output) == 8


def test_experts_of_gpt_oss_are_read_as_they_are_published(reference, tmp_path: Path) -> None:
    check("gpt_oss", tmp_path, reference, Kind.MXFP4)


@pytest.mark.parametrize("family", ["cohere2", "glm4", "granite_moe", "gpt_oss", "llama", "qwen3_moe"])
def test_ranks_read_their_rows(family: str, tmp_path: Path, monkeypatch) -> None:
    """Permuted, woven and stacked rows are found by each."""
    file = write(family, tmp_path, Kind.Q8_0, intermediate_size=128)
    monkeypatch.setattr(Shard, "sum", lambda shard, part: part)
    config, of_floats = read_config(file), read_config(tmp_path / "meant")
    x = torch.randn(5, config.hidden_size, generator=torch.Generator().manual_seed(1))
    for shard in (Shard(0, 2), Shard(1, 2)):
        model = load_model(file, config, torch.float32, CPU, None, shard)
        meant = load_model(tmp_path / "meant", of_floats, torch.float32, CPU, None, shard)
        for found, wanted in zip(model.layers, meant.layers, strict=True):
            torch.testing.assert_close(found.attention.qkv(x), wanted.attention.qkv(x), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(found.feed_forward(x), wanted.feed_forward(x), rtol=1e-4, atol=1e-4)


def writer_of(architecture: str, path: Path) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tensor("token_embd.weight", np.zeros((32, 64), dtype=np.float32))
    return writer


def finished(writer: gguf.GGUFWriter) -> None:
    for write_out in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write_out()
    writer.close()


@pytest.mark.parametrize("name", ["jamba", "rwkv7", "mamba2"])
def test_architectures_without_a_reader_are_refused_by_name(name: str, tmp_path: Path) -> None:
    finished(writer_of(name, tmp_path / "model.gguf"))
    with pytest.raises(ModelLoadError, match=rf"general\.architecture is '{name}'.* use the safetensors checkpoint"):
        read_config(tmp_path / "model.gguf")


def test_every_architecture_is_tried() -> None:
    tried = [FAMILIES[family]() for family in WRITTEN]
    tried += [FAMILIES[family](**changes) for family, changes in VARIANTS.values()]
    assert {architecture_of(fields)[0] for fields in tried} == {*READ}


def test_a_layer_for_one_token_further_is_left_aside(reference, tmp_path: Path) -> None:
    """As files of GLM-4.5 have one, which counts among their blocks."""
    file = write("glm4_moe", tmp_path)
    raw = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(tmp_path / "longer.gguf", "glm4moe")
    for field in raw.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = field.contents() + 1 if field.name.endswith(".block_count") else field.contents()
        sub_type = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(field.name, value, field.types[0], sub_type=sub_type)
    writer.add_nextn_predict_layers(1)
    for tensor in raw.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.add_tensor("blk.2.nextn.eh_proj.weight", np.zeros((64, 128), dtype=np.float32))
    writer.add_tensor("blk.2.attn_q.weight", np.zeros((128, 64), dtype=np.float32))
    finished(writer)
    found, wanted = (greedy_answers(small_engine(each), PROMPTS, 8) for each in (tmp_path / "longer.gguf", file))
    assert found == wanted


BIG = 2**63
HOSTILE: dict[str, Any] = {
    "block_count": [0, 2**31, BIG, "2", [1, 2], True, 2.0],
    "attention.head_count": [0, BIG, [4] * 2, "4"],
    "attention.head_count_kv": [0, 3, BIG, [2, 2]],
    "attention.key_length": [0, 7, BIG, "16"],
    "embedding_length": [0, BIG, "64"],
    "expert_count": [0, 2**31, BIG, "x", -1],
    "expert_used_count": [0, 99, BIG],
    "expert_feed_forward_length": [0, BIG, "32"],
    "rope.freq_base": ["x", float("nan"), float("inf"), -1.0, [1.0]],
    "rope.dimension_count": [0, 7, BIG, "x"],
    "rope.scaling.type": [["yarn"], 7, "warp"],
    "attention.sliding_window_pattern": [[True] * 99],
    "attention.sliding_window": ["x", BIG],
    "context_length": [0, BIG],
    "attention.shared_kv_layers": [2, 99, BIG, "x"],
    "attention.indexer.key_length": [0, 7, BIG, "x"],
    "embedding_length_per_layer_input": [BIG, "x"],
    "ssm.group_count": [0, 5, BIG, "x"],
    "ssm.time_step_rank": [0, 2**20, BIG, [4]],
    "ssm.inner_size": [0, 7, 2**20, BIG],
    "ssm.state_size": [0, BIG, "x"],
}


HOSTILE_FAMILIES = [
    "cohere2moe", "deepseek2", "falcon-h1", "gemma3", "gemma4", "glm-dsa", "glm4moe", "granitehybrid", "llama",
    "llama4", "nemotron_h", "olmo2", "phimoe", "qwen3moe", "qwen35",
]  # fmt: skip


@pytest.mark.parametrize("architecture", HOSTILE_FAMILIES)
@pytest.mark.parametrize("key", HOSTILE)
def test_metadata_of_hostile_sizes_is_refused(architecture: str, key: str, tmp_path: Path) -> None:
    usual = {
        "block_count": 2, "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16,
        "embedding_length": 64, "feed_forward_length": 96, "context_length": 256, "expert_used_count": 2,
        "expert_count": 4, "expert_feed_forward_length": 32, "attention.layer_norm_rms_epsilon": 1e-5,
        "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.inner_size": 128, "ssm.state_size": 16,
        "ssm.conv_kernel": 4,
    }  # fmt: skip
    for number, value in enumerate(HOSTILE[key]):
        path = tmp_path / f"{number}.gguf"
        writer = writer_of(architecture, path)
        for name, each in {**usual, key: value}.items():
            kind = gguf.GGUFValueType.UINT64 if type(each) is int and each >= 0 else gguf.GGUFValueType.get_type(each)
            writer.add_key_value(f"{architecture}.{name}", each, kind)
        finished(writer)
        with pytest.raises(ModelLoadError) as raised:  # at the latest for want of tensors
            load_model(path, read_config(path), torch.float32, CPU)
        assert raised.value.message


@pytest.mark.parametrize("name", ["general.architecture", "tokenizer.ggml.pre", "tokenizer.ggml.eos_token_id"])
def test_lists_in_the_place_of_texts_and_numbers_are_no_crash(name: str, tmp_path: Path) -> None:
    from fairlead_common.models.gguf_file import GgufFile
    from fairlead_common.models.gguf_tokenizer import read_gguf_tokenizer

    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    if name == "general.architecture":
        writer.kv_data[0].pop(name)
    writer.add_array(name, ["a", "b"])
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_array("tokenizer.ggml.merges", ["a b"])
    writer.add_string("tokenizer.ggml.model", "gpt2")
    finished(writer)
    with pytest.raises(ModelLoadError):
        read_config(path)
    if name.startswith("tokenizer."):
        with pytest.raises(ModelLoadError, match=name.rpartition(".")[2]):
            read_gguf_tokenizer(GgufFile(path))


def test_experts_that_are_not_alike_are_refused_by_name(tmp_path: Path) -> None:
    for number, (shape, says) in enumerate(
        (((96,), "must begin with experts"), ((2**15, 1, 1), "must begin with exp"))
    ):
        path = tmp_path / f"{number}.gguf"
        writer = writer_of("qwen3moe", path)
        for name, value in {"block_count": 1, "attention.head_count": 4, "embedding_length": 64}.items():
            writer.add_uint32(f"qwen3moe.{name}", value)
        writer.add_tensor("blk.0.ffn_up_exps.weight", np.zeros(shape, dtype=np.float32))
        finished(writer)
        with pytest.raises(ModelLoadError, match=rf"layers\.0\.mlp\.experts\.\*\.up_proj\.weight.* {says}"):
            load_model(path, read_config(write("qwen3_moe", tmp_path / f"{number}")), torch.float32, CPU)
