"""transformers' tokens are chosen, whatever the checkpoint's shape."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairlead_engine.core.engine import Engine
from fairlead_engine.core.startup import warm_up
from fairlead_engine.kernels.attention.choice import BACKENDS
from fairlead_engine.model import weights
from fairlead_engine.model.loading import read_config
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.greedy_answers import greedy_answers, small_engine
from fairlead_engine_testing.tiny_families import FAMILIES
from fairlead_engine_testing.tiny_families.dense import llama_fields, phi3_fields, qwen3_fields
from fairlead_engine_testing.tiny_families.experts import phimoe_fields
from fairlead_engine_testing.tiny_families.latent import deepseek_v32_fields, glm_moe_dsa_fields
from fairlead_engine_testing.tiny_families.recurrent import nemotron_h_fields

pytestmark = pytest.mark.matrix

SHAPES = {
    **{name: family() for name, family in FAMILIES.items()},
    **{
        f"{name}-{shape}": family(**changes)
        for name, family in FAMILIES.items()
        for shape, changes in family.shapes.items()
    },
}


@pytest.fixture(autouse=True)
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead_engine.core.engine.warm_up", warm_up)


@pytest.fixture(
    params=[pytest.param("triton", marks=pytest.mark.compute) if name == "triton" else name for name in BACKENDS]
)
def backend(request) -> str:
    return request.param


def check(
    reference, folder: Path, lengths: Sequence[int], num_new: int = 5, *, budget: int = 24, **settings: Any
) -> Engine:
    """Prompts of these lengths, in chunks of the budget; returns what has computed them."""
    draw = random.Random(sum(lengths))
    prompts = [[draw.randrange(2, 256) for _ in range(length)] for length in lengths]
    engine = small_engine(folder, max_num_batched_tokens=budget, max_num_seqs=5, kv_cache_memory=2**23, **settings)
    for prompt, output in zip(prompts, greedy_answers(engine, prompts, num_new), strict=True):
        assert len(output) == num_new
        reference.check_greedy(folder, prompt, output)
    return engine


ON_BACKENDS = [
    *((name, backend) for name in SHAPES for backend in BACKENDS if backend != "triton"),
    *(pytest.param(name, "triton", marks=pytest.mark.compute) for name in list(SHAPES)[::8]),
]
"""Kernels do not know families, and their interpreter takes seconds for each."""


@pytest.mark.parametrize(("name", "backend"), ON_BACKENDS)
def test_every_shape_of_checkpoint_gives_the_references_tokens(name, tmp_path, backend, reference):
    folder = write_random_checkpoint(tmp_path / name, SHAPES[name])
    if backend == "triton":  # interpreted, where each token takes long: chunks and several blocks all the same
        check(reference, folder, (1, 33), 4, attention_backend=backend)
    else:
        check(reference, folder, (1, 7, 16, 33, 90), attention_backend=backend)


@pytest.mark.parametrize("name", SHAPES)
def test_a_configuration_says_the_same_as_transformers_writes_it(name, tmp_path):
    """What files leave out is written, old names are new ones, and layers are named one by one."""
    from transformers import AutoConfig

    fields = SHAPES[name]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config = read_config(tmp_path)
    AutoConfig.from_pretrained(tmp_path, architectures=fields["architectures"]).save_pretrained(tmp_path)
    written = read_config(tmp_path)
    assert replace(written, num_guessing_layers=config.num_guessing_layers) == config  # one more by some classes


SMALLEST = {"index_n_heads": 1, "index_topk": 1, "qk_rope_head_dim": 2, "index_head_dim": 2, "kv_lora_rank": 1}
FEW_INDEX_HEADS = {
    "smallest": deepseek_v32_fields(**SMALLEST, num_attention_heads=1, num_key_value_heads=1, v_head_dim=1),
    "one-head": deepseek_v32_fields(index_n_heads=1, index_topk=5, index_head_dim=9, rope_scaling=None),
    "shared": glm_moe_dsa_fields(
        index_n_heads=1, index_topk=3, num_hidden_layers=5, indexer_types=None, index_topk_pattern="FSSFS"
    ),
    "two-heads": glm_moe_dsa_fields(index_n_heads=2, index_topk=2, rope_scaling={"type": "linear", "factor": 3.0}),
}


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("name", FEW_INDEX_HEADS)
def test_of_equal_scores_the_earlier_tokens_are_chosen(name, block_size, tmp_path, reference, monkeypatch):
    """Products below 0 count as 0, which most scores of a single head then are."""
    from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer
    from transformers.models.glm_moe_dsa.modeling_glm_moe_dsa import GlmMoeDsaIndexer

    def in_order(scores: torch.Tensor, num: int, dim: int) -> Any:
        return torch.return_types.topk(each[..., :num] for each in scores.sort(dim=dim, descending=True, stable=True))

    for kind in (DeepseekV32Indexer, GlmMoeDsaIndexer):

        def forward(*args: Any, compute: Any = kind.forward, **kwargs: Any) -> Any:
            with monkeypatch.context() as patch:
                patch.setattr(torch.Tensor, "topk", in_order)
                return compute(*args, **kwargs)

        monkeypatch.setattr(kind, "forward", forward)
    folder = write_random_checkpoint(tmp_path / name, FEW_INDEX_HEADS[name])
    for each in ("cpu_spans", "block_tables"):
        engine = check(reference, folder, (1, 7, 33), attention_backend=each, block_size=block_size)
        assert "chooses keys" in engine.runner._part.model.why_not_captured


@pytest.mark.parametrize("share", [1.0, 0.75])
def test_positions_are_stretched_for_the_longest_context_that_is_served(share, tmp_path, reference):
    """transformers, which sees whole sequences, looks at the length of each."""
    num_pairs = int(16 * share) // 2
    scaling = {
        "type": "longrope",
        "short_factor": [1.0 + 0.1 * pair for pair in range(num_pairs)],
        "long_factor": [1.5 + 0.7 * pair for pair in range(num_pairs)],
    }
    fields = phi3_fields(
        original_max_position_embeddings=64, rope_scaling=scaling, partial_rotary_factor=share, sliding_window=None
    )
    folder = write_random_checkpoint(tmp_path / "model", fields)
    for longest, lengths in ((64, (1, 30, 55)), (None, (65, 90, 120)), (200, (64, 70))):
        check(reference, folder, lengths, budget=40, max_model_len=longest)


def test_scales_of_stretched_positions_are_given_for_short_contexts(tmp_path, reference):
    scaling = {
        "type": "longrope", "short_factor": [1.0 + 0.1 * pair for pair in range(8)], "long_factor": [3.0] * 8,
        "short_mscale": 1.3, "long_mscale": 1.7, "original_max_position_embeddings": 64,
    }  # fmt: skip
    folder = write_random_checkpoint(tmp_path / "model", phimoe_fields(rope_scaling=scaling, sliding_window=None))
    engine = check(reference, folder, (1, 30, 55), max_model_len=64)
    assert engine.runner._part.config.rope.own_scale == 1.3
    assert read_config(folder).for_context(65).rope.own_scale == 1.7


@pytest.mark.parametrize(
    "name",
    [
        "mixtral-many-experts",
        "mixtral-one-expert",
        "qwen2_moe",
        "qwen3_moe-some-dense",
        "deepseek_v3",
        "llama4-top-2",
        "ernie4_5_moe",
        "gemma4_moe-inputs",
        "phimoe-odd",
    ],
)
def test_experts_in_one_product_give_the_references_tokens(name, tmp_path, monkeypatch, reference):
    """As on CUDA, where the host does not know who goes where."""
    monkeypatch.setattr(weights, "groups_experts", lambda device: True)
    folder = write_random_checkpoint(tmp_path / name, SHAPES[name])
    engine = check(reference, folder, (1, 7, 33))
    assert engine.runner._part.model.why_not_captured is None


def test_a_nemotron_is_read_by_newer_names_with_its_experts_in_one_tensor(tmp_path):
    first, second = (write_random_checkpoint(tmp_path / name, nemotron_h_fields()) for name in ("each", "stacked"))
    stored = load_file(second / "model.safetensors")
    for kind in ("up_proj", "down_proj"):
        of_layer = "backbone.layers.3.mixer.experts"
        each = [stored.pop(f"{of_layer}.{number}.{kind}.weight") for number in range(6)]
        stored[f"{of_layer}.{kind}"] = torch.stack(each)
    save_file(
        {name.replace("backbone.", "model."): each for name, each in stored.items()}, second / "model.safetensors"
    )
    prompts = [[7 * place % 250 + 2 for place in range(length)] for length in (3, 20)]
    assert greedy_answers(small_engine(first), prompts, 8) == greedy_answers(small_engine(second), prompts, 8)


def test_shards_hold_the_same_model_as_a_single_file(tmp_path, reference):
    folder = write_random_checkpoint(tmp_path / "sharded", qwen3_fields(), num_shards=3)
    assert len(list(folder.glob("*.safetensors"))) == 3
    check(reference, folder, (20, 5), 6, budget=64)


def test_bfloat16_stays_close_to_float32(tmp_path, reference):
    folder = write_random_checkpoint(tmp_path, llama_fields())
    engine = small_engine(folder, dtype="bfloat16", max_num_batched_tokens=32)
    assert engine.runner.dtype is torch.bfloat16
    prompts = [[5 + 7 * place % 200 for place in range(length)] for length in (60, 33, 9)]
    for prompt, output in zip(prompts, greedy_answers(engine, prompts, 10), strict=True):
        logits = reference.logits(folder, prompt + output[:-1])[len(prompt) - 1 :]
        chosen = logits.gather(1, torch.tensor(output).unsqueeze(1))
        assert float((logits.max(dim=1, keepdim=True).values - chosen).max()) < 0.15
