"""`config.json` in its several spellings becomes one ModelConfig, or an error that names the field and the remedy."""

import json
import os
from pathlib import Path

import pytest
import tokenizers

from fairlead_common.models.families.registry import ARCHITECTURES
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.model_config import ModelConfig
from fairlead_common.models.rope_config import RopeConfig, RopeKind
from fairlead_engine.demo import resolve_model
from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.loading import read_config
from fairlead_engine_testing.tiny_families import FAMILIES
from fairlead_engine_testing.tiny_families.dense import (
    cohere2_fields,
    ernie4_5_fields,
    exaone4_fields,
    glm4_fields,
    llama_fields,
    mistral_fields,
    phi3_fields,
    qwen2_fields,
    qwen3_fields,
    smollm3_fields,
)
from fairlead_engine_testing.tiny_families.experts import mixtral_fields, qwen3_moe_fields
from fairlead_engine_testing.tiny_families.latent import deepseek_v2_fields, deepseek_v3_fields

ABSURD = (None, "", [], {}, -1, 0, 2**40, 1.5, True, "x", [[]], {"a": {}})
"""Of which each is wrong for most fields."""
LINEAR = {"rope_type": "linear", "factor": 2.0}


def load(folder: Path, fields: dict, generation: dict | None = None) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(fields))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_config(folder)


def without(fields: dict, *names: str) -> dict:
    return {name: value for name, value in fields.items() if name not in names}


def test_a_llama_is_read_as_it_says(tmp_path):
    config = load(
        tmp_path, llama_fields(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, dtype="bfloat16")
    )
    assert config.architecture == "LlamaForCausalLM"
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert config.qkv_bias and config.output_bias and config.mlp_bias and config.tie_word_embeddings
    assert config.dtype == "bfloat16"
    assert config.rope == RopeConfig(theta=10000.0)


def test_a_mixtral_has_experts_and_defaults_of_its_own(tmp_path):
    config = load(tmp_path, mixtral_fields())
    assert (config.num_experts, config.num_experts_per_token) == (4, 2)
    names = ("num_local_experts", "num_experts_per_tok", "num_key_value_heads", "rms_norm_eps", "rope_theta")
    config = load(tmp_path, without(mixtral_fields(num_attention_heads=16), *names))
    assert (config.num_experts, config.num_experts_per_token, config.num_kv_heads) == (8, 2, 8)
    assert (config.rms_norm_eps, config.rope.theta) == (1e-5, 1e6)


def test_what_is_left_out_takes_the_architectures_default(tmp_path):
    fields = without(llama_fields(), "head_dim", "num_key_value_heads", "rope_theta", "rms_norm_eps", "dtype")
    config = load(tmp_path, fields)
    assert (config.head_dim, config.num_kv_heads, config.rope.theta, config.dtype) == (16, 4, 10000.0, "float32")
    assert load(tmp_path, without(qwen3_fields(), "head_dim")).head_dim == 128


def test_the_model_type_decides_when_no_architecture_is_named(tmp_path):
    assert load(tmp_path, without(qwen3_fields(), "architectures")).architecture == "Qwen3ForCausalLM"


def test_an_architecture_may_be_spelled_as_published(tmp_path):
    spelled = FAMILIES["exaone_moe"](architectures=["ExaoneMoEForCausalLM"])
    assert load(tmp_path, spelled).architecture == "ExaoneMoeForCausalLM"


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": None, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500000}},
    ],
)
def test_all_spellings_of_rotary_scaling_mean_the_same(fields, tmp_path):
    config = load(tmp_path, llama_fields(**fields))
    assert config.rope == RopeConfig(theta=5e5, kind=RopeKind.LINEAR, factor=2.0)


def test_default_rope_parameters_carry_the_base(tmp_path):
    fields = llama_fields(rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    assert load(tmp_path, fields).rope == RopeConfig(theta=1e6)


@pytest.mark.parametrize(
    ("config_eos", "generation", "expected"),
    [
        (1, None, (1,)),
        ([1, 2], None, (1, 2)),
        (None, None, ()),
        (1, {"eos_token_id": [3, 4]}, (3, 4)),
        (1, {"temperature": 0.6}, (1,)),
    ],
)
def test_the_generation_config_decides_what_ends_an_output(config_eos, generation, expected, tmp_path):
    assert load(tmp_path, llama_fields(eos_token_id=config_eos), generation).eos_token_ids == expected


@pytest.mark.parametrize("token", ["<end>", {"content": "<end>", "lstrip": False}])
def test_the_tokenizers_end_counts_where_the_configuration_names_none(token, tmp_path):
    vocabulary = {"a": 0, "b": 1, "<end>": 2}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="a"))
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
    assert load(tmp_path, llama_fields(eos_token_id=None)).eos_token_ids == (2,)
    assert load(tmp_path, llama_fields(eos_token_id=[])).eos_token_ids == (2,)
    assert load(tmp_path, llama_fields(eos_token_id=1)).eos_token_ids == (1,)


@pytest.mark.parametrize("config", [{}, {"eos_token": None}, {"eos_token": "<unknown>"}])
def test_a_tokenizer_without_an_end_names_none(config, tmp_path):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load(tmp_path, llama_fields(eos_token_id=None)).eos_token_ids == ()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 4.0}}, "spiral"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1], "long_factor": [2]}}, "1 short and 1 long"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor 0\.5"),
        ({"partial_rotary_factor": 0.25, "rope_scaling": {"type": "linear", "factor": 2.0}}, "partial_rotary_factor"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types sliding_attention"),
        ({"layer_types": ["full_attention", "mamba", "chunked_attention"]}, "layer_types chunked_attention, mamba"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"dtype": "float64"}, "float64"),
    ],
)
def test_what_the_layers_cannot_compute_is_refused_by_name(changes, named, tmp_path):
    with pytest.raises(ModelLoadError, match=named) as raised:
        load(tmp_path, llama_fields(**changes))
    assert raised.value.reason == ModelLoadReason.UNSUPPORTED_ARCHITECTURE


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        (llama_fields(), (0, 0)),
        (mixtral_fields(sliding_window=64), (64, 64)),
        (without(mistral_fields(), "sliding_window"), (4096, 4096)),
        (mistral_fields(sliding_window=None), (0, 0)),
        (qwen2_fields(sliding_window=64), (0, 0)),
        (qwen2_fields(use_sliding_window=True, sliding_window=8, max_window_layers=1), (0, 8)),
        (qwen2_fields(use_sliding_window=True, sliding_window=8), (0, 0)),
        (qwen2_fields(use_sliding_window=True, sliding_window=8, max_window_layers=0), (8, 8)),
        (qwen3_fields(use_sliding_window=True, layer_types=["sliding_attention", "full_attention"], sliding_window=9),
         (9, 0)),
    ],
)  # fmt: skip
def test_what_each_layer_sees_is_read_as_its_family_writes_it(fields, windows, tmp_path):
    assert load(tmp_path, fields).windows == windows


@pytest.mark.parametrize("changes", [{"layer_types": ["sliding_attention"] * 2}, {"layer_types": ["full_attention"]}])
def test_layer_types_that_fit_nothing_else_are_named(changes, tmp_path):
    with pytest.raises(ModelLoadError, match="layer_types") as raised:
        load(tmp_path, qwen2_fields(**changes))
    assert raised.value.reason == ModelLoadReason.MODEL_CONFIG_INVALID


def test_phi3s_older_names_of_longrope_are_known(tmp_path):
    factors = {"short_factor": [1] * 8, "long_factor": [2] * 8}
    fields = phi3_fields(original_max_position_embeddings=64, rope_scaling={"type": "su", **factors})
    config = load(tmp_path, fields)
    assert (config.rope.kind, config.rope.original_max_position_embeddings) == ("longrope", 64)
    assert config.for_context(None).rope.is_long and not config.for_context(64).rope.is_long
    assert load(tmp_path, {**fields, "rope_scaling": {"type": "yarn", **factors}}).rope == config.rope


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (deepseek_v2_fields(topk_method="noaux_tc"), "topk_method noaux_tc"),
        (deepseek_v2_fields(scoring_func="sigmoid"), "scoring_func sigmoid"),
        (deepseek_v2_fields(norm_topk_prob=True), "norm_topk_prob"),
        (deepseek_v2_fields(attention_bias=True), "attention_bias without q_lora_rank"),
        (deepseek_v2_fields(mlp_bias=True), "mlp_bias"),
        (deepseek_v2_fields(qk_rope_head_dim=7), "qk_rope_head_dim is 7 but must be even"),
        (deepseek_v3_fields(scoring_func="softmax"), "scoring_func softmax"),
        (deepseek_v3_fields(topk_method="greedy"), "topk_method greedy"),
        (deepseek_v3_fields(n_group=3), r"n_group is 3 but must divide n_routed_experts \(8\)"),
        (deepseek_v3_fields(topk_group=5), r"topk_group is 5 but must be at most n_group \(4\)"),
        (deepseek_v3_fields(num_experts_per_tok=5), "num_experts_per_tok is 5 but must be at most 4"),
        (deepseek_v3_fields(num_nextn_predict_layers=-1), "num_nextn_predict_layers"),
    ],
)
def test_what_a_deepseek_may_not_say_is_named(fields, named, tmp_path):
    with pytest.raises(ModelLoadError, match=named):
        load(tmp_path, fields)


def test_a_latent_is_one_head_that_is_stored_once(tmp_path):
    config = load(tmp_path, deepseek_v3_fields(rope_scaling=None))
    assert (config.num_kv_heads, config.head_dim, config.shared_value_dim) == (1, 40, 32)
    assert config.query_scale == pytest.approx((40 / 24) ** 0.5)
    dense = load(tmp_path, deepseek_v2_fields(first_k_dense_replace=9, n_shared_experts=None))
    assert dense.inner_sizes == {"intermediate_size": 96} and dense.num_shared_experts == 0


def test_an_unknown_architecture_is_named_beside_all_that_are_known(tmp_path):
    with pytest.raises(ModelLoadError, match="GPT2LMHeadModel") as raised:
        load(tmp_path, llama_fields(architectures=["GPT2LMHeadModel"]))
    for fields in FAMILIES.values():
        assert fields()["architectures"][0] in raised.value.message


def test_a_qwen_with_experts_says_which_layers_have_none(tmp_path):
    config = load(tmp_path, qwen3_moe_fields(num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3]))
    assert config.dense_layers == {0, 2, 3, 4}
    config = load(tmp_path, {**without(qwen3_moe_fields(), "num_experts"), "num_local_experts": 5})
    assert (config.num_experts, config.expert_size, config.dense_layers) == (5, 32, frozenset())
    with pytest.raises(ModelLoadError, match=r"mlp_only_layers .* must be a list of integers from 0 on"):
        load(tmp_path, qwen3_moe_fields(mlp_only_layers=[-1]))
    with pytest.raises(ModelLoadError, match=r"num_experts_per_tok is 7 .* num_experts \(6\)"):
        load(tmp_path, qwen3_moe_fields(num_experts_per_tok=7))


@pytest.mark.parametrize("fields", [cohere2_fields, ernie4_5_fields, glm4_fields])
def test_quantised_rows_of_paired_heads_are_refused_by_name(fields, tmp_path):
    with pytest.raises(ModelLoadError, match=r"quantization_config in this family.*--quantization"):
        load(tmp_path, fields(quantization_config={"quant_method": "fp8"}))


def test_layers_without_positions_are_named_for_every_layer(tmp_path):
    assert load(tmp_path, smollm3_fields()).unturned == {1}
    assert load(tmp_path, exaone4_fields(sliding_window=None, layer_types=["full_attention"] * 2)).local_rope is None
    with pytest.raises(ModelLoadError, match=r"no_rope_layers .* must have as many as num_hidden_layers \(2\)"):
        load(tmp_path, smollm3_fields(no_rope_layers=[1]))


def test_windows_may_be_written_as_letters(tmp_path):
    """As LGAI-EXAONE/EXAONE-4.0-32B has it."""
    several = {"num_hidden_layers": 6, "layer_types": None}
    windows = load(tmp_path, exaone4_fields(**several, sliding_window_pattern="LLG")).windows
    assert windows == (20, 20, 0) * 2 == load(tmp_path, exaone4_fields(**several, sliding_window_pattern=3)).windows
    for letters in ("", "LLL", "GLL", "LGLG", "LLX"):
        with pytest.raises(ModelLoadError, match=r"sliding_window_pattern .* an integer, or letters L that end"):
            load(tmp_path, exaone4_fields(**several, sliding_window_pattern=letters))


@pytest.mark.parametrize(
    ("fields", "changes", "named"),
    [
        ("gemma4", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention all"),
        ("gemma4", {"num_kv_shared_layers": 3}, "num_kv_shared_layers is 3"),
        ("gemma4", {"num_kv_shared_layers": 9}, "num_kv_shared_layers is 9"),
        ("gemma4", {"vocab_size_per_layer_input": 255}, "vocab_size_per_layer_input is 255"),
        ("gemma4", {"global_head_dim": 15}, "global_head_dim is 15"),
        ("gemma4", {"per_layer_config": {"1": {"head_dim": 24}}}, "per_layer_config"),
        ("gemma4", {"per_layer_config": {"1": {"intermediate_size": 24}}}, "per_layer_config"),
        (
            "gemma4",
            {"rope_parameters": {"full_attention": {**LINEAR, "partial_rotary_factor": 0.5}}},
            "partial_rotary_factor 0.5 with linear",
        ),
        ("gemma4_moe", {"num_global_key_value_heads": 3}, "num_global_key_value_heads is 3"),
        ("gemma4_moe", {"top_k_experts": 7}, r"top_k_experts is 7 .* num_experts \(6\)"),
        ("phimoe", {"num_experts_per_tok": 1}, "num_experts_per_tok is 1"),
        ("phimoe", {"rope_scaling": LINEAR}, "rotary scaling linear"),
        ("llama4", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config in this family"),
        ("llama4", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types sliding_attention"),
        ("llama4", {"no_rope_layers": [1]}, "no_rope_layers"),
        ("llama4", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rotary scaling yarn"),
        ("llama4", {"attention_chunk_size": 0}, "attention_chunk_size"),
        ("hunyuan", {"use_cla": True}, "use_cla true"),
        ("hunyuan", {"use_qk_norm": False}, "use_qk_norm false"),
        ("hunyuan", {"rope_scaling": {"type": "dynamic", "alpha": 1e300}}, "rope_scaling.alpha is 1e.300"),
        ("hunyuan_moe", {"moe_topk": [2, 3]}, "moe_topk"),
        ("hunyuan_moe", {"moe_topk": 7}, "moe_topk is 7"),
        ("hunyuan_moe", {"num_shared_expert": [2, 2]}, "num_shared_expert 2"),
        ("hunyuan_moe", {"moe_intermediate_size": 64}, "moe_intermediate_size"),
        ("hunyuan_moe", {"moe_layer_num_skipped": 1}, "moe_layer_num_skipped 1"),
        ("hunyuan_moe", {"norm_topk_prob": False}, "norm_topk_prob false"),
        ("llama", {"layer_types": ["full_attention"]}, "layer_types .* as many as num_hidden_layers"),
        ("deepseek_v32", {"layer_types": ["indexed_attention"] * 3}, "layer_types .* as many as num_hidden_layers"),
        ("qwen3_5", {"layer_types": None, "full_attention_interval": 4}, "full_attention_interval is 4"),
        ("nemotron_h", {"time_step_min": -1.0}, "time_step_min is -1.0"),
        ("bamba", {"attn_layer_indices": []}, "attn_layer_indices"),
        ("bamba", {"attn_layer_indices": [3]}, "attn_layer_indices"),
        ("bamba", {"time_step_limit": [0.0, 0.1]}, r"time_step_limit is \[0.0, 0.1\]"),
        ("bamba", {"mamba_d_head": 12}, "mamba_d_head is 12"),
        ("bamba", {"mamba_n_groups": 3}, "mamba_n_heads"),
        ("lfm2", {"layer_types": ["conv"] * 3}, "layer_types .* must name full_attention"),
        (
            "lfm2",
            {"layer_types": ["conv", "mamba", "full_attention"]},
            "asks for layer_types mamba, .* full_attention and conv",
        ),
        ("lfm2", {"layer_types": None, "full_attn_idxs": [3]}, r"full_attn_idxs is \[3\] but"),
        ("lfm2", {"conv_L_cache": 0}, "conv_L_cache is 0"),
        ("lfm2", {"block_ff_dim": -1}, "block_ff_dim is -1"),
        ("lfm3", {"layer_types": ["conv"] * 4}, "layer_types .* must name full_attention or sliding_attention"),
        ("lfm3", {"layer_types": ["conv"] * 3 + ["mamba"]}, "asks for layer_types mamba"),
        ("lfm3", {"layer_types": ["full_attention"]}, "layer_types .* as many as num_hidden_layers"),
        ("lfm3", {"sliding_window": None}, "sliding_window is missing and must be a positive integer"),
        ("apertus", {"hidden_act": "silu"}, "asks for hidden_act silu, .* xielu is supported"),
        ("exaone_moe", {"n_group": 4}, "n_group is 4 .* groups of two or more"),
        ("exaone_moe", {"mlp_layer_types": ["sparse"]}, "mlp_layer_types .* as many as num_hidden_layers"),
        ("hunyuan_3", {"mlp_bias": True}, "mlp_bias"),
        ("hunyuan_3", {"num_experts_per_tok": 7}, "num_experts_per_tok .* at most num_experts"),
        ("solar_open", {"n_group": 2, "topk_group": 3}, "topk_group .* at most n_group"),
        ("dots1", {"n_routed_experts": None}, "n_routed_experts is missing"),
        ("dots1", {"n_group": 4}, "n_group is 4 .* groups of two or more"),
        ("dots1", {"layer_types": ["sliding_attention"] * 2}, "sliding_window is missing and must be a positive"),
        ("dots1", {"scoring_func": "softmax"}, "scoring_func softmax"),
        ("lfm2_moe", {"num_experts_per_tok": 7}, "num_experts_per_tok is 7"),
        ("falcon_h1", {"mlp_multipliers": [1.0]}, "mlp_multipliers .* must have 2 numbers"),
        ("falcon_h1", {"ssm_multipliers": [1.0] * 4}, "ssm_multipliers .* must have 5 numbers"),
        ("falcon_h1", {"mamba_d_ssm": 100}, "mamba_d_head is 16 .* must be 100"),
        ("nemotron_h", {"hybrid_override_pattern": "M-X*"}, "layers of kind X"),
        ("nemotron_h", {"hybrid_override_pattern": "M-M-"}, "hybrid_override_pattern .* must name full_attention"),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, "mlp_hidden_act is 'silu'"),
        ("nemotron_h", {"attention_bias": True}, "attention_bias is True"),
        ("nemotron_h", {"sliding_window": 64}, "sliding_window is 64"),
        ("nemotron_h", {"time_step_limit": [0.001, 0.1]}, "time_step_limit"),
        ("nemotron_h", {"mamba_num_heads": 7}, "mamba_num_heads is 7"),
        ("nemotron_h", {"n_group": 4}, "n_group is 4"),
        ("nemotron_h", {"topk_group": 2}, "topk_group is 2"),
        ("nemotron_h", {"num_experts_per_tok": 7}, "num_experts_per_tok is 7"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias"),
        ("ernie4_5_moe", {"moe_k": 9}, "moe_k is 9"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv"),
        ("glm4_moe_lite", {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ("deepseek_v32", {"q_lora_rank": None}, "q_lora_rank null"),
        ("deepseek_v32", {"index_head_dim": 6}, r"index_head_dim is 6 but must be at least qk_rope_head_dim \(8\)"),
        ("deepseek_v32", {"index_topk": 0}, "index_topk"),
        ("deepseek_v32", {"rope_interleave": False}, "rope_interleave false"),
        ("deepseek_v32", {"indexer_rope_interleave": True}, "indexer_rope_interleave true"),
        ("deepseek_v32", {"scoring_func": "softmax"}, "of a DeepSeek-V3.2 sigmoid"),
        ("glm_moe_dsa", {"indexer_rope_interleave": False}, "indexer_rope_interleave false"),
        ("glm_moe_dsa", {"indexer_types": ["full", "half", "full"]}, "indexer_types half"),
        ("glm_moe_dsa", {"indexer_types": ["full"]}, r"indexer_types .* num_hidden_layers \(3\)"),
        ("glm_moe_dsa", {"indexer_types": ["shared", "full", "full"]}, "must begin with full"),
        ("glm_moe_dsa", {"indexer_types": None, "index_topk_pattern": "FXF"}, "indexer_types X"),
        ("cohere2_moe", {"mlp_layer_types": ["dense", "wide"]}, "mlp_layer_types wide"),
        ("cohere2_moe", {"expert_selection_fn": "relu"}, "expert_selection_fn relu"),
        ("cohere2_moe", {"shared_expert_combination_strategy": "max"}, "shared_expert_combination_strategy max"),
        ("cohere2_moe", {"sliding_window": None}, "sliding_window null"),
    ],
)
def test_what_a_family_cannot_do_is_named(fields, changes, named, tmp_path):
    with pytest.raises(ModelLoadError, match=named):
        load(tmp_path, FAMILIES[fields](**changes))


def test_more_experts_per_token_than_there_are_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"num_experts_per_tok is 5 .* num_local_experts \(4\)"):
        load(tmp_path, mixtral_fields(num_experts_per_tok=5))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_attention_heads": True}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 15}, "head_dim is 15 but must be even"),
        ({"head_dim": None, "hidden_size": 65}, "num_attention_heads is 4 but must divide hidden_size"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"hidden_act": 1}, "hidden_act"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"eos_token_id": 256}, "eos_token_id"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1, 0]}}, r"rope_scaling.short_factor is \[1, 0\]"),
        ({"rope_scaling": {"rope_type": "llama3", "low_freq_factor": 5, "high_freq_factor": 4}}, "low_freq_factor"),
        ({"num_hidden_layers": 2**40}, "num_hidden_layers is 1099511627776 but must be 10000 at most"),
        ({"head_dim": 10**320}, "head_dim is 10+ but must be 1099511627776 at most"),
        ({"rms_norm_eps": 10**320}, "rms_norm_eps is 10+ but must be a positive number"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(changes, named, tmp_path):
    with pytest.raises(ModelLoadError, match=named) as raised:
        load(tmp_path, llama_fields(**changes))
    assert raised.value.reason == ModelLoadReason.MODEL_CONFIG_INVALID
    assert str(tmp_path / "config.json") in raised.value.message


@pytest.mark.parametrize("name", FAMILIES)
def test_no_value_of_any_field_ends_in_another_error(name):
    family = FAMILIES[name]
    tried = set()
    for fields in (family(), *(family(**changes) for changes in family.shapes.values())):
        for field in fields.keys() - {"architectures"} - tried:
            for value in ABSURD:
                spoilt = JsonFields(Path("config.json"), fields | {field: value})
                try:
                    ARCHITECTURES[fields["architectures"][0]].parse(spoilt)
                except ModelLoadError:
                    pass
                except Exception as error:
                    pytest.fail(f"{field}: {value!r} raises {error!r}")
        tried |= fields.keys()


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_file_that_is_no_json_object_is_named(text, tmp_path):
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelLoadError, match=r"config\.json") as raised:
        read_config(tmp_path)
    assert raised.value.reason == ModelLoadReason.MODEL_CONFIG_INVALID


@pytest.mark.parametrize("name", ["config.json", "chat_template.jinja", "generation_config.json", "more"])
def test_a_folder_with_a_pipe_is_no_model(tmp_path, name):
    """Who opens it would wait for ever."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(ModelLoadError, match=f"{name} is no file"):
        resolve_model(str(tmp_path))


def test_a_folder_without_a_config_is_no_model(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ModelLoadError, match=folder.name) as raised:
            read_config(folder)
        assert raised.value.reason == ModelLoadReason.MODEL_NOT_FOUND
