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
from fairlead_engine.kernels.attention.choice import BACKENDS
from fairlead_engine.model import weights
from fairlead_engine.model.loading import read_config
from fairlead_engine_testing.checkpoints import (
    FAMILIES,
    apertus_fields,
    arcee_fields,
    bamba_fields,
    cohere2_fields,
    cohere2_moe_fields,
    deepseek_v2_fields,
    deepseek_v3_fields,
    deepseek_v32_fields,
    dots1_fields,
    ernie4_5_fields,
    ernie4_5_moe_fields,
    exaone4_fields,
    exaone_moe_fields,
    falcon_h1_fields,
    gemma2_fields,
    gemma3_fields,
    gemma4_fields,
    gemma4_moe_fields,
    glm4_fields,
    glm4_moe_fields,
    glm4_moe_lite_fields,
    glm_moe_dsa_fields,
    gpt_oss_fields,
    granite_fields,
    granite_moe_fields,
    hunyuan_3_fields,
    hunyuan_fields,
    hunyuan_moe_fields,
    lfm2_fields,
    lfm2_moe_fields,
    lfm3_fields,
    llama4_fields,
    llama_fields,
    minimax_m2_fields,
    ministral3_fields,
    mistral_fields,
    mixtral_fields,
    nemotron_h_fields,
    olmo2_fields,
    olmo3_fields,
    olmoe_fields,
    phi3_fields,
    phimoe_fields,
    qwen2_fields,
    qwen2_moe_fields,
    qwen3_5_fields,
    qwen3_fields,
    qwen3_moe_fields,
    qwen3_next_fields,
    seed_oss_fields,
    smollm3_fields,
    solar_open_fields,
    write_random_checkpoint,
)
from fairlead_engine_testing.greedy_answers import greedy_answers, small_engine

pytestmark = pytest.mark.matrix

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

SHAPES = {
    **{name: fields() for name, fields in FAMILIES.items()},
    "apertus-odd": apertus_fields(
        num_hidden_layers=3,
        hidden_size=72,
        intermediate_size=100,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=20,
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters=None,
        rope_theta=500.0,
    ),
    "arcee-odd": arcee_fields(
        num_hidden_layers=3,
        hidden_size=72,
        intermediate_size=100,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=20,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    ),
    "bamba-biases": bamba_fields(
        num_hidden_layers=5,
        attn_layer_indices=[0, 4],
        hidden_size=72,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=20,
        mamba_n_heads=9,
        mamba_d_head="auto",
        mamba_n_groups=3,
        mamba_d_state=5,
        mamba_d_conv=3,
        mamba_proj_bias=True,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
    ),
    "bamba-whole-heads": bamba_fields(
        attn_layer_indices=[2],
        mamba_n_groups=1,
        mamba_conv_bias=False,
        mamba_expand=3,
        mamba_d_head=24,
        rope_parameters={"rope_theta": 500.0, "partial_rotary_factor": 1.0, "rope_type": "default"},
        time_step_limit=[0.0, {"__float__": "Infinity"}],
    ),
    "bamba-share-beside": bamba_fields(partial_rotary_factor=1.0),
    "falcon-h1-normed": falcon_h1_fields(
        num_hidden_layers=3,
        hidden_size=72,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=20,
        mamba_d_ssm=None,
        mamba_n_heads=9,
        mamba_d_head="auto",
        mamba_n_groups=3,
        mamba_d_state=5,
        mamba_d_conv=3,
        mamba_conv_bias=False,
        mamba_rms_norm=True,
        mamba_norm_before_gate=False,
        projectors_bias=True,
        tie_word_embeddings=True,
    ),
    "falcon-h1-biases": falcon_h1_fields(
        mamba_rms_norm=True,
        mamba_proj_bias=True,
        attention_bias=True,
        mlp_bias=True,
        mlp_multipliers=None,
        ssm_multipliers=None,
        num_key_value_heads=1,
    ),
    "lfm2-odd": lfm2_fields(
        num_hidden_layers=5,
        layer_types=None,
        full_attn_idxs=[1, 2],
        hidden_size=72,
        num_attention_heads=6,
        num_key_value_heads=3,
        conv_bias=True,
        conv_L_cache=5,
        block_ff_dim=100,
        block_auto_adjust_ff_dim=False,
        tie_word_embeddings=False,
    ),
    "lfm2-one-token": lfm2_fields(conv_L_cache=1, block_ffn_dim_multiplier=1.3, num_key_value_heads=1),
    "lfm2-attends": lfm2_fields(layer_types=None, block_ffn_dim_multiplier=0.7, block_multiple_of=7),
    "lfm2-moe-odd": lfm2_moe_fields(
        num_hidden_layers=4,
        layer_types=["conv", "conv", "full_attention", "conv"],
        use_expert_bias=False,
        norm_topk_prob=False,
        routed_scaling_factor=1.7,
        num_dense_layers=2,
        conv_bias=True,
    ),
    "lfm3-odd": lfm3_fields(
        num_hidden_layers=7,
        layer_types=None,
        hidden_size=72,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=20,
        sliding_window=5,
        conv_bias=True,
        conv_L_cache=7,
        attention_bias=True,
        tie_word_embeddings=False,
        use_sandwich_norm=False,
    ),
    "lfm3-attends": lfm3_fields(
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        use_attention_gate=False,
        rope_parameters={
            "sliding_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
            "full_attention": {"rope_type": "default", "rope_theta": 900.0},
        },
    ),
    "nemotron-h-latents": nemotron_h_fields(
        hybrid_override_pattern=None,
        layers_block_type=["mlp", "moe", "mamba", "attention", "moe", "mlp", "full_attention", "linear_attention"],
        hidden_size=72,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=20,
        mamba_num_heads=9,
        mamba_head_dim=11,
        mamba_n_groups=3,
        ssm_state_size=5,
        mamba_d_conv=3,
        use_bias=True,
        mlp_bias=True,
        n_routed_experts=8,
        n_group=4,
        topk_group=2,
        num_experts_per_tok=3,
        moe_latent_size=24,
        norm_topk_prob=False,
    ),
    "nemotron-h-longer-steps": nemotron_h_fields(time_step_min=1.4),
    "nemotron-h-attention-alone": nemotron_h_fields(hybrid_override_pattern="*-*", use_conv_bias=False),
    "nemotron-h-states-first": nemotron_h_fields(hybrid_override_pattern="MM*M-M", use_conv_bias=False),
    "llama-tied": llama_fields(tie_word_embeddings=True),
    "llama-biases": llama_fields(attention_bias=True, mlp_bias=True),
    "llama-one-kv-head": llama_fields(num_key_value_heads=1, num_hidden_layers=3),
    "llama-all-kv-heads": llama_fields(num_key_value_heads=4, head_dim=8),
    "llama-wide-heads": llama_fields(head_dim=64, hidden_size=32),
    "llama-one-layer": llama_fields(num_hidden_layers=1),
    "llama-linear-rope": llama_fields(rope_scaling={"type": "linear", "factor": 4.0}),
    "llama-llama3-rope": llama_fields(rope_theta=500000.0, rope_scaling=LLAMA3_ROPE),
    "llama-rope-parameters": llama_fields(rope_parameters={**LLAMA3_ROPE, "rope_theta": 500.0}),
    "ernie4.5-moe-some-dense": ernie4_5_moe_fields(
        num_hidden_layers=6,
        moe_layer_interval=2,
        moe_layer_start_index=2,
        moe_layer_end_index=4,
        moe_k=3,
        moe_num_shared_experts=0,
        tie_word_embeddings=False,
        num_key_value_heads=1,
    ),
    "ernie4.5-moe-everywhere": ernie4_5_moe_fields(
        moe_layer_start_index=0, moe_layer_end_index=-1, moe_num_shared_experts=1, head_dim=24
    ),
    "granite-moe-untied": granite_moe_fields(
        tie_word_embeddings=False,
        attention_bias=True,
        num_local_experts=5,
        num_experts_per_tok=3,
        intermediate_size=64,
        logits_scaling=0.5,
    ),
    "olmoe-normalised": olmoe_fields(
        norm_topk_prob=True,
        num_experts=5,
        num_experts_per_tok=3,
        attention_bias=True,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    ),
    "kimi-k2": deepseek_v3_fields(
        n_group=1,
        topk_group=1,
        routed_scaling_factor=2.827,
        rope_theta=50_000.0,
        num_key_value_heads=4,
        rope_scaling={
            "type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 64,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "beta_fast": 1.0,
            "beta_slow": 1.0,
        },
    ),
    "glm-4.7-flash-kinds": glm4_moe_lite_fields(
        num_hidden_layers=3,
        mlp_layer_types=["sparse", "dense", "sparse"],
        n_routed_experts=8,
        n_group=4,
        topk_group=2,
        q_lora_rank=None,
        attention_bias=False,
        rope_interleave=False,
        n_shared_experts=1,
    ),
    "cohere2-moe-sigmoid": cohere2_moe_fields(
        num_hidden_layers=6,
        layer_types=None,
        mlp_layer_types=None,
        first_k_dense_replace=2,
        rms_norm_eps=1e-5,
        sliding_window_pattern=3,
        expert_selection_fn="sigmoid",
        norm_topk_prob=False,
        num_shared_experts=1,
        shared_expert_combination_strategy="sum",
        attention_bias=True,
        tie_word_embeddings=False,
        num_key_value_heads=1,
    ),
    "cohere2-moe-plain": cohere2_moe_fields(
        num_hidden_layers=4,
        layer_types=None,
        mlp_layer_types=None,
        first_k_dense_replace=2,
        num_shared_experts=0,
        prefix_dense_sliding_window_pattern=2,
        expert_selection_fn="sigmoid",
        prefix_dense_intermediate_size=None,
    ),
    "ministral3-window": ministral3_fields(
        sliding_window=9, num_key_value_heads=1, tie_word_embeddings=True, num_hidden_layers=3
    ),
    "hunyuan-plain": hunyuan_fields(
        rope_scaling=None,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        head_dim=32,
        num_key_value_heads=1,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "hunyuan-moe-lists": hunyuan_moe_fields(
        num_hidden_layers=3,
        moe_topk=[3, 3, 3],
        num_experts=5,
        num_shared_expert=[1, 1, 1],
        norm_topk_prob=True,
        moe_intermediate_size=[48, 48, 48],
        intermediate_size=48,
        tie_word_embeddings=True,
        rope_scaling={"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
        use_cla=False,
        use_qk_norm=True,
    ),
    "llama4-top-2": llama4_fields(
        num_hidden_layers=5,
        no_rope_layers=None,
        num_experts_per_tok=2,
        num_local_experts=5,
        moe_layers=[0, 3],
        attention_chunk_size=7,
        attention_bias=True,
        intermediate_size=64,
    ),
    "llama4-maverick": llama4_fields(
        use_qk_norm=False,
        attn_temperature_tuning=False,
        num_key_value_heads=1,
        interleave_moe_layer_step=1,
        rope_scaling={**LLAMA3_ROPE, "high_freq_factor": 1.0},
        tie_word_embeddings=True,
        layer_types=["full_attention", "chunked_attention"],
    ),
    "phimoe-odd": phimoe_fields(
        num_local_experts=7,
        router_jitter_noise=0.4,  # so that others count beside the best
        lm_head_bias=False,
        attention_bias=False,
        sliding_window=None,
        num_key_value_heads=1,
        num_hidden_layers=3,
    ),
    "phi4-mini": phi3_fields(partial_rotary_factor=0.75, tie_word_embeddings=True, sliding_window=None),
    "dynamic-rope": llama_fields(rope_scaling={"type": "dynamic", "factor": 4.0}),
    "phi4": phi3_fields(num_key_value_heads=1, sliding_window=None, tie_word_embeddings=True),
    "cohere2": cohere2_fields(),
    "cohere2-windows-alone": cohere2_fields(layer_types=["sliding_attention"] * 2, sliding_window=5),
    "cohere2-pattern": cohere2_fields(num_hidden_layers=5, layer_types=None, attention_bias=True),
    "dots1-groups": dots1_fields(
        num_hidden_layers=3,
        head_dim=24,
        n_routed_experts=9,
        n_group=3,
        topk_group=2,
        num_experts_per_tok=3,
        norm_topk_prob=False,
        n_shared_experts=1,
        sliding_window=9,
        max_window_layers=1,
        attention_bias=True,
    ),
    "exaone-moe-groups": exaone_moe_fields(
        num_hidden_layers=5,
        layer_types=None,
        sliding_window_pattern=3,
        first_k_dense_replace=2,
        num_experts=9,
        n_group=3,
        topk_group=2,
        num_experts_per_tok=3,
        num_shared_experts=2,
        norm_topk_prob=False,
    ),
    "exaone-moe-some-dense": exaone_moe_fields(
        num_hidden_layers=3,
        layer_types=["sliding_attention"] * 3,
        mlp_layer_types=["sparse", "dense", "sparse"],
        tie_word_embeddings=True,
        num_key_value_heads=1,
    ),
    "hunyuan-3-some-dense": hunyuan_3_fields(
        num_hidden_layers=3,
        mlp_layer_types=["sparse", "dense", "sparse"],
        attention_bias=True,
        num_experts=5,
        num_experts_per_tok=3,
        num_shared_experts=2,
        router_scaling_factor=0.7,
        num_key_value_heads=1,
    ),
    "solar-open-groups": solar_open_fields(
        n_routed_experts=8,
        n_group=4,
        topk_group=2,
        num_experts_per_tok=3,
        n_shared_experts=2,
        attention_bias=True,
        routed_scaling_factor=2.5,
        tie_word_embeddings=True,
        rope_scaling={"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
    ),
    "ernie4.5": ernie4_5_fields(),
    "ernie4.5-biases": ernie4_5_fields(use_bias=True, num_key_value_heads=1, tie_word_embeddings=True),
    "glm4": glm4_fields(),
    "glm4-one-kv-head": glm4_fields(num_key_value_heads=1, attention_bias=False, num_hidden_layers=3),
    "granite": granite_fields(),
    "granite-untied": granite_fields(tie_word_embeddings=False, attention_bias=True, mlp_bias=True),
    "exaone4": exaone4_fields(),
    "exaone4-windows-alone": exaone4_fields(num_hidden_layers=3, layer_types=None),
    "exaone4-pattern": exaone4_fields(num_hidden_layers=5, layer_types=None),
    "exaone4-without-windows": exaone4_fields(sliding_window=None, layer_types=["full_attention"] * 2),
    "glm4-moe": glm4_moe_fields(num_hidden_layers=3),
    "glm4-moe-air": glm4_moe_fields(use_qk_norm=False, first_k_dense_replace=0, norm_topk_prob=False),
    "minimax-m2": minimax_m2_fields(),
    "seed-oss": seed_oss_fields(),
    "smollm3": smollm3_fields(),
    "smollm3-interval": smollm3_fields(num_hidden_layers=5, no_rope_layers=None, no_rope_layer_interval=2),
    "olmo3-pattern": olmo3_fields(num_hidden_layers=5, layer_types=None),
    "yarn": qwen2_fields(rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}),
    "yarn-mscale": llama_fields(
        rope_scaling={
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
            "beta_fast": 20.0,
            "beta_slow": 2.0,
        }
    ),
    "yarn-factor": llama_fields(
        rope_scaling={
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "attention_factor": 1.1,
            "truncate": False,
        }
    ),
    "deepseek-v2-lite": deepseek_v2_fields(
        num_hidden_layers=3,
        rope_scaling={
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        },
    ),
    "deepseek-v2": deepseek_v2_fields(
        q_lora_rank=36,
        attention_bias=True,
        topk_method="group_limited_greedy",
        n_routed_experts=9,
        n_group=3,
        topk_group=2,
        num_experts_per_tok=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        rms_norm_eps=0.01,
        routed_scaling_factor=4.0,
        n_shared_experts=1,
        first_k_dense_replace=0,
    ),
    "deepseek-v3-halves": deepseek_v3_fields(
        rope_interleave=False,
        q_lora_rank=None,
        rope_scaling=None,
        norm_topk_prob=False,
        n_group=2,
        topk_group=1,
        v_head_dim=12,
        qk_rope_head_dim=6,
        kv_lora_rank=20,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    ),
    "deepseek-v3.2-one-token": deepseek_v32_fields(
        index_topk=1,
        index_head_dim=6,
        index_n_heads=5,
        qk_rope_head_dim=6,
        kv_lora_rank=20,
        v_head_dim=12,
        num_attention_heads=1,
        num_key_value_heads=1,
        attention_bias=True,
        rope_scaling=None,
        mlp_layer_types=["sparse", "dense"],
        tie_word_embeddings=True,
    ),
    "deepseek-v3.2-long": deepseek_v32_fields(index_topk=60, index_n_heads=7, index_head_dim=22, num_hidden_layers=3),
    "deepseek-v3.2-whole": deepseek_v32_fields(index_topk=300),
    "glm-5-rhythm": glm_moe_dsa_fields(
        num_hidden_layers=6,
        indexer_types=None,
        index_topk_freq=2,
        index_skip_topk_offset=3,
        first_k_dense_replace=0,
        index_topk=7,
        n_group=2,
        topk_group=1,
        rope_scaling=None,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 5000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "mscale": 1.0,
            "mscale_all_dim": 0.7,
        },
    ),
    "glm-5-pattern": glm_moe_dsa_fields(
        num_hidden_layers=4,
        indexer_types=None,
        index_topk_pattern="FSSF",
        index_topk=25,
        index_head_dim=18,
        mlp_layer_types=["sparse", "dense", "dense", "sparse"],
        attention_bias=True,
    ),
    "gemma2-untied": gemma2_fields(
        num_hidden_layers=3,
        tie_word_embeddings=False,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=None,
        num_key_value_heads=1,
    ),
    "gemma3-pattern": gemma3_fields(num_hidden_layers=7, layer_types=None, rope_scaling=None),
    "gemma3-newer": gemma3_fields(
        rope_scaling=None,
        attention_bias=True,
        rope_theta=None,
        rope_local_base_freq=None,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2000.0},
        },
    ),
    "gemma4-keys-as-values": gemma4_fields(
        num_hidden_layers=7,
        layer_types=None,
        num_kv_shared_layers=0,
        use_double_wide_mlp=False,
        hidden_size_per_layer_input=0,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=12,
        global_head_dim=20,
        sliding_window=9,
        tie_word_embeddings=False,
        final_logit_softcapping=None,
        rope_parameters={
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.5,
                "factor": 3.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 2000.0},
        },
    ),
    "gemma4-one-shape": gemma4_fields(head_dim=24, rope_parameters=None, per_layer_config={}),
    "gemma4-readers": gemma4_fields(
        num_hidden_layers=5,
        layer_types=["full_attention", "sliding_attention", "full_attention"] + ["sliding_attention"] * 2,
        num_kv_shared_layers=3,
        use_double_wide_mlp=False,
        attention_bias=True,
        vocab_size_per_layer_input=300,
        num_key_value_heads=1,
    ),
    "gemma4-per-layer-config": gemma4_fields(
        head_dim=20, per_layer_config={str(index): {"head_dim": 16, "num_key_value_heads": 4} for index in (0, 2)}
    ),
    "gemma4-moe-inputs": gemma4_moe_fields(
        num_hidden_layers=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=1,
        use_double_wide_mlp=True,
        hidden_size_per_layer_input=6,
        num_experts=5,
        top_k_experts=3,
        num_global_key_value_heads=2,
    ),
    "gpt-oss-odd": gpt_oss_fields(
        num_hidden_layers=3,
        layer_types=None,
        rope_scaling=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        num_attention_heads=6,
        num_key_value_heads=2,
        num_local_experts=5,
        num_experts_per_tok=3,
        attention_bias=False,
        tie_word_embeddings=True,
        swiglu_alpha=1.0,
    ),
    "olmo2-one-kv-head": olmo2_fields(num_key_value_heads=1, attention_bias=True, tie_word_embeddings=True),
    "qwen2-tied": qwen2_fields(tie_word_embeddings=True, rope_theta=1e6),
    "qwen2-whole-layers": qwen2_fields(use_sliding_window=True, layer_types=["full_attention"] * 2),
    "qwen2-windows": qwen2_fields(num_hidden_layers=3, use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "mistral-whole": mistral_fields(sliding_window=None),
    "mistral-one-token": mistral_fields(sliding_window=1, num_key_value_heads=1),
    "mixtral-window": mixtral_fields(sliding_window=17),
    "mixtral-tied": mixtral_fields(tie_word_embeddings=True),
    "mixtral-many-experts": mixtral_fields(num_local_experts=9, num_experts_per_tok=3, rope_theta=1e6),
    "mixtral-one-expert": mixtral_fields(num_local_experts=2, num_experts_per_tok=1),
    "qwen2-moe-some-dense": qwen2_moe_fields(
        num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[1], norm_topk_prob=True, qkv_bias=True
    ),
    "qwen3-moe-some-dense": qwen3_moe_fields(mlp_only_layers=[0], norm_topk_prob=False, tie_word_embeddings=True),
    "qwen3-windows": qwen3_fields(
        use_sliding_window=True, sliding_window=30, layer_types=["sliding_attention", "full_attention"]
    ),
    "qwen3-next-yarn": qwen3_next_fields(
        partial_rotary_factor=0.5,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    ),
    "qwen3.5-llama3-rope": qwen3_5_fields(rope_scaling=LLAMA3_ROPE, partial_rotary_factor=0.375),
    "glm4-linear-rope": glm4_fields(rope_scaling={"type": "linear", "factor": 4.0}),
    "qwen3-tied": qwen3_fields(tie_word_embeddings=True),
    "qwen3-biases": qwen3_fields(attention_bias=True),
    "qwen3-wide-groups": qwen3_fields(num_attention_heads=8, num_key_value_heads=1, head_dim=24, rope_theta=1e6),
}


@pytest.fixture(
    params=[pytest.param("triton", marks=pytest.mark.compute) if name == "triton" else name for name in BACKENDS]
)
def backend(request) -> str:
    return request.param


def check(
    reference, folder: Path, lengths: Sequence[int], num_new: int = 8, *, budget: int = 24, **settings: Any
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
        "qwen3-moe-some-dense",
        "deepseek_v3",
        "llama4-top-2",
        "ernie4_5_moe",
        "gemma4-moe-inputs",
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
