"""Checkpoints with random weights, of any supported shape, for tests and benchmarks without a download.

Written in the Hugging Face layout, so that other engines load the same files.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from fairlead_common.models.families.deepseek import DeepseekConfig
from fairlead_common.models.families.dense import ApertusConfig, UngatedConfig
from fairlead_common.models.families.experts import (
    ExpertsConfig,
    GptOssConfig,
    RoutedExpertsConfig,
)
from fairlead_common.models.families.gemma4 import Gemma4Config
from fairlead_common.models.families.hybrids import HybridConfig
from fairlead_common.models.families.llama4 import Llama4Config
from fairlead_common.models.families.nemotron_h import NemotronHConfig
from fairlead_common.models.families.recurrent import GraniteHybridConfig
from fairlead_common.models.families.registry import ARCHITECTURES
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.model_config import ModelConfig, QueryNorm, StateNorm
from fairlead_engine.model.loading import read_config

Shape = tuple[int, ...]
_LATENT = {
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}
_HEAD_NORMS = {
    QueryNorm.HEADS: ("q_norm", "k_norm"),
    QueryNorm.TURNED_HEADS: ("query_layernorm", "key_layernorm"),
}
_ROUTED_NAMES = {
    "Ernie4_5_MoeForCausalLM": ("gate", "moe_statics.e_score_correction_bias", "shared_experts"),
    "ExaoneMoeForCausalLM": ("gate", "e_score_correction_bias", "shared_experts"),
    "HunYuanMoEV1ForCausalLM": ("gate.wg", "", "shared_mlp"),
    "HYV3ForCausalLM": ("router.gate", "expert_bias", "shared_mlp"),
}
"""Names of router, bias of scores and shared experts, where they are not DeepSeek's."""
_AS_MIXTRAL = ("MixtralForCausalLM", "MiniMaxM2ForCausalLM", "PhimoeForCausalLM")
"""Experts named as Mixtral's."""
_GELU = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}


def llama_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Llama, with changes."""
    return {**_fields("LlamaForCausalLM", "llama"), "head_dim": 16, **changes}


def apertus_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Apertus, with changes; its positions are not stretched."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    own = {"hidden_act": "xielu", "rope_parameters": rope, "pad_token_id": 0}
    return {**_fields("ApertusForCausalLM", "apertus"), "head_dim": 16, **own, **changes}


def arcee_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Arcee, with changes."""
    return {**_fields("ArceeForCausalLM", "arcee"), "head_dim": 24, "hidden_act": "relu2", **changes}


def granite_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Granite with experts, with changes."""
    fields = granite_fields(num_local_experts=4, num_experts_per_tok=2, logits_scaling=1.0)
    return {**fields, "architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", **changes}


def hunyuan_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny dense Hunyuan, with changes; the base of its positions is stretched."""
    rope = {"type": "dynamic", "alpha": 50.0, "factor": 1.0}
    return {
        **_fields("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"), "head_dim": 24, "rope_scaling": rope, **changes
    }  # fmt: skip


def hunyuan_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Hunyuan with experts, with changes."""
    experts = {"num_experts": 6, "moe_topk": 2, "intermediate_size": 32}
    return {**_fields("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe"), "head_dim": 24, **experts, **changes}


def llama4_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Llama 4, with changes; its first layer has chunks and no experts, its second no
    positions."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2}
    own = {
        "head_dim": 16,
        "intermediate_size_mlp": 128,
        "attention_chunk_size": 20,
        "floor_scale": 8,
        "attn_scale": 0.3,
    }
    layers = {"no_rope_layers": [1, 0], "use_qk_norm": True, "attn_temperature_tuning": True}
    return {**_fields("Llama4ForCausalLM", "llama4_text"), **experts, **own, **layers, **changes}


def qwen2_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Qwen2, with changes."""
    return {**_fields("Qwen2ForCausalLM", "qwen2"), "use_sliding_window": False, "sliding_window": 64, **changes}


def qwen3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Qwen3, with changes. Its heads are wider than hidden size over heads."""
    return {**_fields("Qwen3ForCausalLM", "qwen3"), "head_dim": 32, **changes}


def mistral_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Mistral, with changes. It sees less than its context."""
    return {**_fields("MistralForCausalLM", "mistral"), "head_dim": 24, "sliding_window": 20, **changes}


def ministral3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Ministral 3, with changes; its positions are stretched, and its queries grow."""
    rope = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "beta_fast": 32.0}
    rope |= {"beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "rope_theta": 1e6, "llama_4_scaling_beta": 0.4}
    return {**_fields("Ministral3ForCausalLM", "ministral3"), "head_dim": 24, "rope_parameters": rope, **changes}


def mixtral_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Mixtral, with changes."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
    return {**_fields("MixtralForCausalLM", "mixtral"), "head_dim": 16, **experts, **changes}


def olmo2_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny OLMo 2, with changes."""
    return {**_fields("Olmo2ForCausalLM", "olmo2"), **changes}


def olmoe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny OLMoE, with changes."""
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32, "norm_topk_prob": False}
    return {**_fields("OlmoeForCausalLM", "olmoe"), **experts, **changes}


def olmo3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny OLMo 3, with changes; of one layer positions are stretched."""
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    own = {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"], "rope_scaling": rope}
    own["rope_theta"] = 500_000.0
    return {**_fields("Olmo3ForCausalLM", "olmo3"), **own, **changes}


def cohere2_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Command A, with changes; one of its layers sees all, without positions."""
    own = {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": True}
    return {
        **_fields("Cohere2ForCausalLM", "cohere2"), **own, "layer_norm_eps": 1e-5, "logit_scale": 1.5, **changes
    }  # fmt: skip


def cohere2_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Cohere 2 with experts, with changes; its first layer has none, and its last sees all,
    without positions."""
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32, "num_shared_experts": 2}
    own = {"prefix_dense_intermediate_size": 96, "mlp_layer_types": ["dense", "sparse"], "rms_norm_eps": None}
    fields = cohere2_fields(head_dim=16, **experts, **own)
    return {**fields, "architectures": ["Cohere2MoeForCausalLM"], "model_type": "cohere2_moe", **changes}


def ernie4_5_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny ERNIE 4.5, with changes; its heads are turned by adjacent pairs."""
    return {**_fields("Ernie4_5ForCausalLM", "ernie4_5"), "head_dim": 24, "use_bias": False, **changes}


def glm4_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny GLM-4, with changes; halves of its heads are turned, by adjacent pairs."""
    own = {"head_dim": 32, "attention_bias": True, "partial_rotary_factor": 0.5, "pad_token_id": 0}
    return {**_fields("Glm4ForCausalLM", "glm4"), **own, **changes}


def glm4_moe_lite_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny GLM-4.7-Flash, with changes; its first layer has no experts."""
    own = {"q_lora_rank": 32, "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.8}
    return {**_fields("Glm4MoeLiteForCausalLM", "glm4_moe_lite"), **_LATENT, **own, **changes}


def granite_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Granite, with changes; its output projection is the embedding table."""
    factors = {"embedding_multiplier": 2.0, "residual_multiplier": 0.6, "attention_multiplier": 0.1}
    own = {"logits_scaling": 0.5, "tie_word_embeddings": True}
    return {**_fields("GraniteForCausalLM", "granite"), **factors, **own, **changes}


def ernie4_5_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny ERNIE 4.5 with experts, with changes; its first layer has none."""
    experts = {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 2}
    own = {"tie_word_embeddings": True, "moe_layer_start_index": 1}
    return {**_fields("Ernie4_5_MoeForCausalLM", "ernie4_5_moe"), "use_bias": False, **experts, **own, **changes}


def exaone4_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny EXAONE 4, with changes; one of its layers sees all, without positions."""
    own = {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]}
    return {**_fields("Exaone4ForCausalLM", "exaone4"), **own, **changes}


def exaone_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny K-EXAONE, with changes; its first layer has no experts, and its second no
    positions."""
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_shared_experts": 1}
    own = {"architectures": ["ExaoneMoeForCausalLM"], "model_type": "exaone_moe", "first_k_dense_replace": 1}
    return exaone4_fields(**{"pad_token_id": 0, **own, **experts, **changes})


def hunyuan_3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Hunyuan 3, with changes; its first layer has no experts."""
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_shared_experts": 1}
    return {**_fields("HYV3ForCausalLM", "hy_v3"), "head_dim": 24, **experts, **changes}


def solar_open_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Solar Open, with changes; all layers have experts."""
    experts = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
    return {**_fields("SolarOpenForCausalLM", "solar_open"), "head_dim": 24, **experts, **changes}


def dots1_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny dots.llm1, with changes; its first layer has no experts."""
    experts = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 2}
    routing = {"norm_topk_prob": True, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1}
    return {**_fields("Dots1ForCausalLM", "dots1"), "sliding_window": None, **experts, **routing, **changes}


def seed_oss_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Seed-OSS, with changes. Its heads are wider than hidden size over heads."""
    own = {"head_dim": 24, "attention_bias": True, "attention_out_bias": False, "mlp_bias": False}
    return {**_fields("SeedOssForCausalLM", "seed_oss"), **own, **changes}


def smollm3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny SmolLM3, with changes; one of its layers has no positions."""
    own = {"no_rope_layers": [1, 0], "tie_word_embeddings": True, "pad_token_id": 0}
    return {**_fields("SmolLM3ForCausalLM", "smollm3"), **own, **changes}


def phi3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Phi-3, with changes. It sees less than its context."""
    return {**_fields("Phi3ForCausalLM", "phi3"), "sliding_window": 20, "pad_token_id": 0, **changes}


def phimoe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Phi-3.5-MoE, with changes."""
    experts = {"num_local_experts": 3, "num_experts_per_tok": 2, "router_jitter_noise": 0.01, "lm_head_bias": True}
    own = {"sliding_window": 20, "attention_bias": True, "rms_norm_eps": 1e-5}
    return {**_fields("PhimoeForCausalLM", "phimoe"), **experts, **own, **changes}


def gemma2_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Gemma 2, with changes. It sees less than its context, and its queries are not
    scaled by the size of a head."""
    own = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 20, "tie_word_embeddings": True}
    return {**_fields("Gemma2ForCausalLM", "gemma2"), **_GELU, **own, **changes}


def gemma3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Gemma 3, with changes; one of its layers sees its whole context."""
    own = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 20, "tie_word_embeddings": True}
    layers = {"layer_types": ["sliding_attention", "full_attention"], "rope_theta": 100_000.0}
    rope = {"rope_local_base_freq": 1000.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    return {**_fields("Gemma3ForCausalLM", "gemma3_text"), **_GELU, **own, **layers, **rope, **changes}


def gemma4_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of the text part of a tiny Gemma 4, with changes; the second half of its layers read what the
    first half stored, and each layer has an input of its own."""
    own: dict[str, Any] = {"head_dim": 16, "global_head_dim": 24, "sliding_window": 20, "tie_word_embeddings": True}
    layers = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
    readers = {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}
    inputs = {"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 256, "final_logit_softcapping": 30.0}
    fields = {**_fields("Gemma4ForCausalLM", "gemma4_text"), **_GELU, **own, **layers, **readers, **inputs}
    del fields["rope_theta"]
    return {**fields, **changes}


def gemma4_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of the text part of a tiny Gemma 4 with experts, with changes; of layers that see all keys are
    values."""
    experts = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 32}
    keys = {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_key_value_heads": 2}
    plain = {"num_kv_shared_layers": 0, "use_double_wide_mlp": False, "hidden_size_per_layer_input": 0}
    layers = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    return gemma4_fields(**{**experts, **keys, **plain, **layers, **changes})


def gpt_oss_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny gpt-oss, with changes; its gates are clamped often."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": 0.5}
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "truncate": False}
    own = {"head_dim": 16, "sliding_window": 20, "attention_bias": True, "rope_theta": 150_000.0, "rope_scaling": rope}
    layers = {"layer_types": ["sliding_attention", "full_attention"]}
    return {**_fields("GptOssForCausalLM", "gpt_oss"), **experts, **own, **layers, **changes}


def glm4_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny GLM-4.5, with changes; its first layer has no experts."""
    experts = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
    routing = {"norm_topk_prob": True, "routed_scaling_factor": 1.5, "n_group": 1, "topk_group": 1}
    own: dict[str, Any] = {"head_dim": 32, "attention_bias": True, "use_qk_norm": True, "first_k_dense_replace": 1}
    own["partial_rotary_factor"] = 0.5
    return {**_fields("Glm4MoeForCausalLM", "glm4_moe"), **experts, **routing, **own, **changes}


def minimax_m2_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny MiniMax-M2, with changes. A half of its heads is turned."""
    experts = {"num_local_experts": 6, "num_experts_per_tok": 2}
    return {**_fields("MiniMaxM2ForCausalLM", "minimax_m2"), "head_dim": 32, "rotary_dim": 16, **experts, **changes}


def qwen3_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Qwen3-MoE, with changes."""
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    return {**_fields("Qwen3MoeForCausalLM", "qwen3_moe"), "head_dim": 32, **experts, **changes}


def qwen2_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Qwen2-MoE, with changes."""
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    shared = {"shared_expert_intermediate_size": 64, "use_sliding_window": False}
    return {**_fields("Qwen2MoeForCausalLM", "qwen2_moe"), **experts, **shared, **changes}


_RECURRENT = {
    "head_dim": 16, "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 12, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip


def qwen3_next_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Qwen3-Next, with changes."""
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    own = {"shared_expert_intermediate_size": 64, "partial_rotary_factor": 0.25, "num_nextn_predict_layers": 0}
    return {**_fields("Qwen3NextForCausalLM", "qwen3_next"), **_RECURRENT, **experts, **own, **changes}


def qwen3_5_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of the text part of a tiny Qwen3.5, with changes."""
    own = {"partial_rotary_factor": 0.25}
    return {**_fields("Qwen3_5ForCausalLM", "qwen3_5_text"), **_RECURRENT, **own, **changes}


def qwen3_5_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of the text part of a tiny Qwen3.5 with experts, with changes."""
    fields = qwen3_next_fields(architectures=["Qwen3_5MoeForCausalLM"], model_type="qwen3_5_moe_text")
    return {name: value for name, value in fields.items() if name != "intermediate_size"} | changes


_MAMBA = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_d_head": 16, "mamba_d_conv": 4}


def granite_hybrid_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Granite 4 with recurrent layers and experts, with changes."""
    experts = {"num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 32}
    factors = {"residual_multiplier": 0.5, "embedding_multiplier": 2.0, "attention_multiplier": 0.3}
    own = {"logits_scaling": 1.5, "num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"]}
    fields = _fields("GraniteMoeHybridForCausalLM", "granitemoehybrid")
    return {**fields, "head_dim": 16, **_MAMBA, **experts, **factors, **own, **changes}


def bamba_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Bamba, with changes; halves of its heads are turned."""
    own = {"head_dim": 16, "num_hidden_layers": 3, "attn_layer_indices": [1], "pad_token_id": 0}
    return {**_fields("BambaForCausalLM", "bamba"), **_MAMBA, **own, **changes}


def falcon_h1_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Falcon-H1, with changes; it has a factor wherever there may be some."""
    factors: dict[str, Any] = {"embedding_multiplier": 2.0, "lm_head_multiplier": 0.7, "key_multiplier": 0.4}
    factors |= {"attention_in_multiplier": 1.3, "attention_out_multiplier": 0.9, "mlp_multipliers": [0.8, 0.6]}
    factors |= {"ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.5, "ssm_multipliers": [0.7, 1.2, 0.4, 1.5, 0.8]}
    own = {"head_dim": 16, "mamba_d_ssm": 128, "mamba_rms_norm": False, "pad_token_id": 0}
    return {**_fields("FalconH1ForCausalLM", "falcon_h1"), **_MAMBA, **factors, **own, **changes}


def nemotron_h_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Nemotron-H, with changes; its layers are of all kinds."""
    mamba = {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 12, "conv_kernel": 4}
    experts = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1}
    own = {"topk_group": 1, "moe_shared_expert_intermediate_size": 64, "routed_scaling_factor": 1.5}
    kept = {"hybrid_override_pattern": "M-*EM", "head_dim": 16, "layer_norm_epsilon": 1e-5, "num_hidden_layers": 5}
    fields = _fields("NemotronHForCausalLM", "nemotron_h")
    return {**fields, **mamba, **experts, **own, **kept, "mlp_hidden_act": "relu2", **changes}


def lfm2_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny LFM2, with changes; its feed-forwards are narrower than the file says."""
    own = {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "norm_eps": 1e-5}
    return {**_fields("Lfm2ForCausalLM", "lfm2"), **own, "block_multiple_of": 32, "pad_token_id": 0, **changes}


def lfm2_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny LFM2 with experts behind the first layer, with changes."""
    own = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_dense_layers": 1}
    return lfm2_fields(architectures=["Lfm2MoeForCausalLM"], model_type="lfm2_moe", **own) | changes


def lfm3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny LFM3, with changes; a layer sees a window."""
    own = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "sliding_attention"]}
    own |= {"architectures": ["Lfm3ForCausalLM"], "model_type": "lfm3", "head_dim": 16, "sliding_window": 10}
    return {
        name: value for name, value in lfm2_fields(**own).items() if not name.startswith(("block_", "rms_", "rope_"))
    } | changes


def deepseek_v2_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny DeepSeek-V2, with changes; its queries come through no narrower vector, as Lite's."""
    experts = {"topk_method": "greedy", "routed_scaling_factor": 1.5, "norm_topk_prob": False, "n_group": 1}
    own = {"q_lora_rank": None, "topk_group": 1}
    return {**_fields("DeepseekV2ForCausalLM", "deepseek_v2"), **_LATENT, **experts, **own, **changes}


def deepseek_v3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny DeepSeek-V3, with changes. Positions are stretched, and with them its scores."""
    experts = {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "n_group": 4}
    own = {"q_lora_rank": 32, "topk_group": 2, "routed_scaling_factor": 2.5, "n_routed_experts": 8}
    rope = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "mscale": 1.0}
    scaling = {"rope_scaling": {**rope, "mscale_all_dim": 0.8, "beta_fast": 32, "beta_slow": 1}}
    return {**_fields("DeepseekV3ForCausalLM", "deepseek_v3"), **_LATENT, **experts, **own, **scaling, **changes}


def deepseek_v32_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny DeepSeek-V3.2, with changes; a query attends to few tokens."""
    fields = deepseek_v3_fields(index_topk=12, index_head_dim=16, index_n_heads=8)
    return {**fields, "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", **changes}


def glm_moe_dsa_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny GLM-5, with changes; its first layer has no experts, and its second takes over the
    choice of the first."""
    own = {"index_topk": 10, "index_head_dim": 12, "index_n_heads": 8, "indexer_types": ["full", "shared", "full"]}
    fields = glm4_moe_lite_fields(num_hidden_layers=3, rope_interleave=True, indexer_rope_interleave=True, **own)
    return {**fields, "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", **changes}


FAMILIES = {
    "apertus": apertus_fields,
    "arcee": arcee_fields,
    "bamba": bamba_fields,
    "cohere2": cohere2_fields,
    "cohere2_moe": cohere2_moe_fields,
    "deepseek_v2": deepseek_v2_fields,
    "deepseek_v3": deepseek_v3_fields,
    "deepseek_v32": deepseek_v32_fields,
    "dots1": dots1_fields,
    "ernie4_5": ernie4_5_fields,
    "ernie4_5_moe": ernie4_5_moe_fields,
    "exaone4": exaone4_fields,
    "exaone_moe": exaone_moe_fields,
    "falcon_h1": falcon_h1_fields,
    "gemma2": gemma2_fields,
    "gemma3": gemma3_fields,
    "gemma4": gemma4_fields,
    "gemma4_moe": gemma4_moe_fields,
    "glm4": glm4_fields,
    "glm4_moe": glm4_moe_fields,
    "glm4_moe_lite": glm4_moe_lite_fields,
    "glm_moe_dsa": glm_moe_dsa_fields,
    "gpt_oss": gpt_oss_fields,
    "granite": granite_fields,
    "granite_hybrid": granite_hybrid_fields,
    "granite_moe": granite_moe_fields,
    "hunyuan": hunyuan_fields,
    "hunyuan_3": hunyuan_3_fields,
    "hunyuan_moe": hunyuan_moe_fields,
    "lfm2": lfm2_fields,
    "lfm2_moe": lfm2_moe_fields,
    "lfm3": lfm3_fields,
    "llama": llama_fields,
    "llama4": llama4_fields,
    "qwen2": qwen2_fields,
    "qwen3": qwen3_fields,
    "ministral3": ministral3_fields,
    "mistral": mistral_fields,
    "minimax_m2": minimax_m2_fields,
    "mixtral": mixtral_fields,
    "nemotron_h": nemotron_h_fields,
    "olmo2": olmo2_fields,
    "olmo3": olmo3_fields,
    "olmoe": olmoe_fields,
    "phi3": phi3_fields,
    "phimoe": phimoe_fields,
    "qwen2_moe": qwen2_moe_fields,
    "qwen3_moe": qwen3_moe_fields,
    "qwen3_next": qwen3_next_fields,
    "qwen3_5": qwen3_5_fields,
    "qwen3_5_moe": qwen3_5_moe_fields,
    "seed_oss": seed_oss_fields,
    "smollm3": smollm3_fields,
    "solar_open": solar_open_fields,
}
"""The `config.json` of a tiny model of each family."""


def write_random_checkpoint(folder: Path, fields: dict[str, Any], *, seed: int = 0, num_shards: int = 1) -> Path:
    """Writes `config.json` and safetensors with normally distributed weights in the dtype that `fields` names.

    The scale keeps activations near one, so that logits differ enough to tell a right model from a wrong one. The same
    arguments give the same weights. Returns the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields, indent=2))
    config = read_config(folder)
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, config.dtype)
    shapes, norm = tensor_shapes(config), 1.0 - config.norm_offset
    tensors = {name: _random(name, shape, generator, norm).to(dtype) for name, shape in shapes}
    if isinstance(config, Gemma4Config):  # whose scores nothing else divides by the size of heads
        tensors |= {name: each / len(each) ** 0.5 for name, each in tensors.items() if name.endswith("q_norm.weight")}
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        _save_shards(folder, tensors, num_shards)
    return folder


def write_guessing_checkpoint(model: Path) -> Path | None:
    """Writes, beside a model's folder, one of the same configuration with a layer for multi-token prediction. None =
    the family reads none, or a tower, too, which is not written here."""
    fields = json.loads((model / "config.json").read_text(encoding="utf-8")) | {"num_nextn_predict_layers": 1}
    family = ARCHITECTURES.get(fields["architectures"][0])
    config = None if family is None else family.parse(JsonFields(model / "config.json", fields))
    if config is None or config.vision is not None or not config.num_guessing_layers:
        return None
    return write_random_checkpoint(model.with_name("guessing"), fields)


def write_random_classifier(folder: Path, fields: dict[str, Any], *, architecture: str | None = None) -> Path:
    """The same with a classifier of `num_labels` in place of the output projection, called `score`."""
    write_random_checkpoint(folder, fields)
    name = architecture or fields["architectures"][0].replace("ForCausalLM", "ForSequenceClassification")
    (folder / "config.json").write_text(json.dumps({"pad_token_id": 0, **fields, "architectures": [name]}))
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    shape = (fields["num_labels"], fields["hidden_size"])
    score = _random("score", shape, torch.Generator().manual_seed(1), 1.0)
    tensors["score.weight"] = score.to(getattr(torch, fields["dtype"]))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tensor_shapes(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every tensor of a checkpoint with this configuration."""
    if isinstance(config, NemotronHConfig):
        yield from _nemotron_h(config)
        return
    if config.architecture.startswith("Lfm"):
        yield from _lfm(config)
        return
    hidden, head_dim, inner = config.hidden_size, config.head_dim, config.intermediate_size
    query, kv, family = config.num_heads * head_dim, config.num_kv_heads * head_dim, config.architecture
    qkv = {"q_proj": ((1 + config.gates_attention) * query, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden)}
    gated = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    if family == "Phi3ForCausalLM":
        qkv = {"qkv_proj": (query + 2 * kv, hidden)}
    if family in ("Phi3ForCausalLM", "Glm4ForCausalLM"):
        gated = {"gate_up_proj": (2 * inner, hidden), "down_proj": (hidden, inner)}
    if isinstance(config, UngatedConfig):
        del gated["gate_proj"]
    expert = _numbered(inner, hidden)
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    if isinstance(config, Gemma4Config) and (size := config.layer_input_size):
        yield "model.embed_tokens_per_layer.weight", (config.layer_input_words, config.num_layers * size)
        yield "model.per_layer_model_projection.weight", (config.num_layers * size, hidden)
        yield "model.per_layer_projection_norm.weight", (size,)
    for index in range(config.num_layers + config.num_guessing_layers):
        prefix = f"model.layers.{index}"
        if index >= config.num_layers:
            yield from _around_guessing_layer(prefix, config)
            prefix = prefix if config.state is None else "mtp.layers.0"
        norms = ["input_layernorm", "post_attention_layernorm"]
        if family.startswith(("Olmo2", "Olmo3", "Exaone4")):
            norms = ["post_attention_layernorm", "post_feedforward_layernorm"]
        if isinstance(config, ApertusConfig):
            norms = ["attention_layernorm", "feedforward_layernorm"]
            yield from ((f"{prefix}.mlp.act_fn.alpha_{side}", (1,)) for side in "pn")
            yield from ((f"{prefix}.mlp.act_fn.{name}", ()) for name in ("beta", "eps"))
        if config.query_norm is QueryNorm.PROJECTIONS:
            yield f"{prefix}.self_attn.q_norm.weight", (query,)
            yield f"{prefix}.self_attn.k_norm.weight", (kv,)
        if family.startswith("Cohere2"):
            norms = norms[:1]
        if isinstance(config, HybridConfig):
            norms = ["input_layernorm", "pre_ff_layernorm"]
        if family == "Glm4ForCausalLM":
            norms += ["post_self_attn_layernorm", "post_mlp_layernorm"]
        elif family.startswith("Gemma"):
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        yield from ((f"{prefix}.{name}.weight", (hidden,)) for name in norms)
        if config.have_norms_bias:
            yield from ((f"{prefix}.{name}.bias", (hidden,)) for name in norms)
        if index in config.recurrent and config.state is not None and config.state.is_mamba:
            yield from _mamba_layer(f"{prefix}.mamba", config)
        elif index in config.recurrent:
            yield from _recurrent_layer(f"{prefix}.linear_attn", config)
        if isinstance(config, Gemma4Config):
            yield from _gemma4_layer(prefix, index, config)
            continue
        if isinstance(config, DeepseekConfig):
            yield from _latent_attention(f"{prefix}.self_attn", config)
            if index in config.indexed:
                yield from _indexer(f"{prefix}.self_attn.indexer", config)
        elif index in config.attending_layers or index >= config.num_layers:
            yield from _linears(f"{prefix}.self_attn", qkv, config.qkv_bias)
            yield from _linears(f"{prefix}.self_attn", {"o_proj": (hidden, query)}, config.output_bias)
        if config.query_norm in _HEAD_NORMS and index not in config.recurrent:
            yield from ((f"{prefix}.self_attn.{name}.weight", (head_dim,)) for name in _HEAD_NORMS[config.query_norm])
        if isinstance(config, GptOssConfig):
            yield f"{prefix}.self_attn.sinks", (config.num_heads,)
            yield from _stacked_experts(f"{prefix}.mlp", config)
        elif family in ("MixtralForCausalLM", "MiniMaxM2ForCausalLM", "PhimoeForCausalLM") and isinstance(
            config, ExpertsConfig
        ):
            if isinstance(config, RoutedExpertsConfig):
                yield f"{prefix}.block_sparse_moe.e_score_correction_bias", (config.num_experts,)
            yield f"{prefix}.block_sparse_moe.gate.weight", (config.num_experts, hidden)
            for number in range(config.num_experts):
                yield from _linears(f"{prefix}.block_sparse_moe.experts.{number}", expert, False)
        elif isinstance(config, GraniteHybridConfig):
            yield from _granite_experts(prefix, config)
        elif isinstance(config, HybridConfig):
            yield from _linears(f"{prefix}.feed_forward", gated, config.mlp_bias)
        elif isinstance(config, Llama4Config):
            if index in config.dense_layers:
                yield from _linears(f"{prefix}.feed_forward", gated, False)
            else:
                yield from _llama4_experts(f"{prefix}.feed_forward", config)
        elif isinstance(config, RoutedExpertsConfig) and index not in config.dense_layers:
            yield from _deepseek_experts(f"{prefix}.mlp", config)
        elif family == "GraniteMoeForCausalLM" and isinstance(config, ExpertsConfig):
            moe, num = f"{prefix}.block_sparse_moe", config.num_experts
            yield f"{moe}.router.layer.weight", (num, hidden)
            yield f"{moe}.input_linear.weight", (num, 2 * inner, hidden)
            yield f"{moe}.output_linear.weight", (num, hidden, inner)
        elif isinstance(config, ExpertsConfig) and index not in config.dense_layers:
            yield from _qwen_experts(f"{prefix}.mlp", config)
        else:
            yield from _linears(f"{prefix}.mlp", gated, config.mlp_bias)
    yield f"model.{'final_layernorm' if isinstance(config, HybridConfig) else 'norm'}.weight", (hidden,)
    if config.have_norms_bias:
        yield "model.norm.bias", (hidden,)
    if config.head_bias:
        yield "lm_head.bias", (config.vocab_size,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)


def _around_guessing_layer(prefix: str, config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """What a layer for multi-token prediction has beside a decoder layer: also copies of the model's, if not Qwen's."""
    hidden = config.hidden_size
    if config.state is not None:
        norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        yield from ((f"mtp.{name}.weight", (hidden,)) for name in norms)
        yield "mtp.fc.weight", (hidden, 2 * hidden)
        return
    yield from ((f"{prefix}.{name}.weight", (hidden,)) for name in ("enorm", "hnorm", "shared_head.norm"))
    yield f"{prefix}.eh_proj.weight", (hidden, 2 * hidden)
    for name in ("embed_tokens", "shared_head.head"):
        yield f"{prefix}.{name}.weight", (config.vocab_size, hidden)


def _recurrent_layer(prefix: str, config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    state, hidden = config.state, config.hidden_size
    assert state is not None
    heads, values = state.num_heads, state.num_heads * state.value_dim
    stored = {"in_proj_qkvz": state.channels + values, "in_proj_ba": 2 * heads}
    if config.architecture != "Qwen3NextForCausalLM":
        stored = {"in_proj_qkv": state.channels, "in_proj_z": values, "in_proj_b": heads, "in_proj_a": heads}
    yield from _linears(prefix, {name: (size, hidden) for name, size in stored.items()}, False)
    yield f"{prefix}.conv1d.weight", (state.channels, 1, state.kernel_size)
    yield from ((f"{prefix}.{name}", (heads,)) for name in ("A_log", "dt_bias"))
    yield f"{prefix}.norm.weight", (state.value_dim,)
    yield f"{prefix}.out_proj.weight", (hidden, values)


def _mamba_layer(prefix: str, config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    state, hidden = config.state, config.hidden_size
    assert state is not None
    heads, values = state.num_heads, state.num_heads * state.value_dim
    yield from _linears(prefix, {"in_proj": (state.channels + values + heads, hidden)}, state.input_bias)
    yield f"{prefix}.conv1d.weight", (state.channels, 1, state.kernel_size)
    if state.has_bias:
        yield f"{prefix}.conv1d.bias", (state.channels,)
    yield from ((f"{prefix}.{name}", (heads,)) for name in ("A_log", "dt_bias", "D"))
    if state.norm is not StateNorm.NOWHERE:
        yield f"{prefix}.norm.weight", (values,)
    yield from _linears(prefix, {"out_proj": (hidden, values)}, state.output_bias)


def _nemotron_h(config: NemotronHConfig) -> Iterator[tuple[str, Shape]]:
    hidden, query, kv = config.hidden_size, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = {"q_proj": (query, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, query)}
    yield "backbone.embeddings.weight", (config.vocab_size, hidden)
    for index in range(config.num_layers):
        yield f"backbone.layers.{index}.norm.weight", (hidden,)
        prefix, inner = f"backbone.layers.{index}.mixer", config.intermediate_size
        if index in config.recurrent:
            yield from _mamba_layer(prefix, config)
        elif index in config.attending_layers or index >= config.num_layers:
            yield from _linears(prefix, attention, False)
        elif index in config.plain_layers:
            yield from _linears(prefix, {"up_proj": (inner, hidden), "down_proj": (hidden, inner)}, config.mlp_bias)
        else:
            yield from _nemotron_h_experts(prefix, config)
    yield "backbone.norm_f.weight", (hidden,)
    yield "lm_head.weight", (config.vocab_size, hidden)


def _nemotron_h_experts(prefix: str, config: NemotronHConfig) -> Iterator[tuple[str, Shape]]:
    hidden, latent, bias = config.hidden_size, config.latent_size, config.mlp_bias
    width, inner, shared = latent or hidden, config.expert_size, config.shared_expert_size
    yield f"{prefix}.gate.weight", (config.num_experts, hidden)
    yield f"{prefix}.gate.e_score_correction_bias", (config.num_experts,)
    for number in range(config.num_experts):
        each = {"up_proj": (inner, width), "down_proj": (width, inner)}
        yield from _linears(f"{prefix}.experts.{number}", each, False)
    wide = {"up_proj": (shared, hidden), "down_proj": (hidden, shared)}
    yield from _linears(f"{prefix}.shared_experts", wide, bias)
    if latent is not None:
        yield from _linears(prefix, {"fc1_latent_proj": (latent, hidden), "fc2_latent_proj": (hidden, latent)}, bias)


def _lfm(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    is_newer = config.architecture.startswith("Lfm3")
    hidden, query, kv = config.hidden_size, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = {"q_proj": (query, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden)}
    attention["o_proj" if is_newer else "out_proj"] = (hidden, query)
    norms = ["operator_norm", "ffn_norm", "post_operator_norm", "post_ffn_norm"][: config.norms_per_layer]
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}"
        yield from ((f"{prefix}.{name}.weight", (hidden,)) for name in norms)
        if config.state is not None and index in config.recurrent:
            shapes: dict[str, Shape] = {"in_proj": (3 * hidden, hidden), "out_proj": (hidden, hidden)}
            shapes["conv"] = (hidden, 1, config.state.kernel_size)
            yield from _linears(f"{prefix}.conv", shapes, config.state.has_bias)
        else:
            yield from _linears(f"{prefix}.self_attn", attention, config.qkv_bias)
            end = "norm" if is_newer else "layernorm"
            yield from ((f"{prefix}.self_attn.{name}_{end}.weight", (config.head_dim,)) for name in "qk")
            if config.gates_heads:
                yield f"{prefix}.self_attn.gate_proj.weight", (config.num_heads, hidden)
        if isinstance(config, ExpertsConfig) and index not in config.dense_layers:
            yield from _lfm2_experts(f"{prefix}.feed_forward", config)
        else:
            yield from _linears(f"{prefix}.feed_forward", _numbered(config.intermediate_size, hidden), False)
    yield "model.embedding_norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)


def _lfm2_experts(prefix: str, config: ExpertsConfig) -> Iterator[tuple[str, Shape]]:
    yield f"{prefix}.gate.weight", (config.num_experts, config.hidden_size)
    if isinstance(config, RoutedExpertsConfig) and config.has_score_bias:
        yield f"{prefix}.expert_bias", (config.num_experts,)
    for number in range(config.num_experts):
        shapes = _numbered(config.expert_size, config.hidden_size)
        yield from _linears(f"{prefix}.experts.{number}", shapes, False)


def _numbered(inner: int, hidden: int) -> dict[str, Shape]:
    """A gated feed-forward's projections: gate, up and down."""
    return {"w1": (inner, hidden), "w3": (inner, hidden), "w2": (hidden, inner)}


def _granite_experts(prefix: str, config: GraniteHybridConfig) -> Iterator[tuple[str, Shape]]:
    hidden, inner, num = config.hidden_size, config.expert_size, config.num_experts
    yield f"{prefix}.shared_mlp.input_linear.weight", (2 * config.shared_expert_size, hidden)
    yield f"{prefix}.shared_mlp.output_linear.weight", (hidden, config.shared_expert_size)
    if num:
        yield f"{prefix}.block_sparse_moe.router.layer.weight", (num, hidden)
        yield f"{prefix}.block_sparse_moe.input_linear.weight", (num, 2 * inner, hidden)
        yield f"{prefix}.block_sparse_moe.output_linear.weight", (num, hidden, inner)


def _latent_attention(prefix: str, config: DeepseekConfig) -> Iterator[tuple[str, Shape]]:
    hidden, heads, bias = config.hidden_size, config.num_heads, config.output_bias
    query = heads * (config.plain_dim + config.turned_dim)
    if config.query_rank is None:
        yield f"{prefix}.q_proj.weight", (query, hidden)
    else:
        yield from _linears(prefix, {"q_a_proj": (config.query_rank, hidden)}, bias)
        yield f"{prefix}.q_a_layernorm.weight", (config.query_rank,)
        yield f"{prefix}.q_b_proj.weight", (query, config.query_rank)
    yield from _linears(prefix, {"kv_a_proj_with_mqa": (config.head_dim, hidden)}, bias)
    yield f"{prefix}.kv_a_layernorm.weight", (config.latent_dim,)
    yield f"{prefix}.kv_b_proj.weight", (heads * (config.plain_dim + config.value_dim), config.latent_dim)
    yield from _linears(prefix, {"o_proj": (hidden, heads * config.value_dim)}, bias)


def _indexer(prefix: str, config: DeepseekConfig) -> Iterator[tuple[str, Shape]]:
    assert config.query_rank is not None
    heads, size, hidden = config.num_index_heads, config.index_dim, config.hidden_size
    shapes = {"wq_b": (heads * size, config.query_rank), "wk": (size, hidden), "weights_proj": (heads, hidden)}
    yield from _linears(prefix, shapes, False)
    yield from ((f"{prefix}.k_norm.{kind}", (size,)) for kind in ("weight", "bias"))


def _gemma4_layer(prefix: str, index: int, config: Gemma4Config) -> Iterator[tuple[str, Shape]]:
    """What a layer has besides the four normalisations."""
    hidden, (kv_heads, head_dim) = config.hidden_size, config.kv_of(index)
    query, kv, size = config.num_heads * head_dim, kv_heads * head_dim, config.layer_input_size
    qkv = {"q_proj": (query, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden)}
    named = dict(list(qkv.items())[: config.num_projections(index)])
    attention = f"{prefix}.self_attn"
    yield from _linears(attention, {**named, "o_proj": (hidden, query)}, config.qkv_bias)
    yield from ((f"{attention}.{name}.weight", (head_dim,)) for name in ("q_norm", "k_norm")[: len(named)])
    yield from _linears(f"{prefix}.mlp", _gated(hidden, config.inner_size(index)), False)
    yield f"{prefix}.layer_scalar", (1,)
    if size:
        yield f"{prefix}.per_layer_input_gate.weight", (size, hidden)
        yield f"{prefix}.per_layer_projection.weight", (hidden, size)
        yield f"{prefix}.post_per_layer_input_norm.weight", (hidden,)
    if num := config.num_experts:
        yield f"{prefix}.router.scale", (hidden,)
        yield f"{prefix}.router.per_expert_scale", (num,)
        yield f"{prefix}.router.proj.weight", (num, hidden)
        yield f"{prefix}.experts.gate_up_proj", (num, 2 * config.expert_size, hidden)
        yield f"{prefix}.experts.down_proj", (num, hidden, config.expert_size)
        names = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
        yield from ((f"{prefix}.{name}.weight", (hidden,)) for name in names)


def _deepseek_experts(prefix: str, config: RoutedExpertsConfig) -> Iterator[tuple[str, Shape]]:
    hidden = config.hidden_size
    names = _ROUTED_NAMES.get(config.architecture, ("gate", "gate.e_score_correction_bias", "shared_experts"))
    router, bias, shared = (f"{prefix}.{name}" for name in names)
    yield f"{router}.weight", (config.num_experts, hidden)
    if config.has_score_bias:
        yield bias, (1, config.num_experts) if config.is_softmax else (config.num_experts,)
    for number in range(config.num_experts):
        yield from _linears(f"{prefix}.experts.{number}", _gated(hidden, config.expert_size), False)
    if inner := config.num_shared_experts * config.expert_size:
        yield from _linears(shared, _gated(hidden, inner), False)


def _llama4_experts(prefix: str, config: Llama4Config) -> Iterator[tuple[str, Shape]]:
    num, hidden, inner = config.num_experts, config.hidden_size, config.expert_size
    yield f"{prefix}.router.weight", (num, hidden)
    yield f"{prefix}.experts.gate_up_proj", (num, hidden, 2 * inner)
    yield f"{prefix}.experts.down_proj", (num, inner, hidden)
    yield from _linears(f"{prefix}.shared_expert", _gated(hidden, inner), False)


def _qwen_experts(prefix: str, config: ExpertsConfig) -> Iterator[tuple[str, Shape]]:
    hidden = config.hidden_size
    yield f"{prefix}.gate.weight", (config.num_experts, hidden)
    for number in range(config.num_experts):
        yield from _linears(f"{prefix}.experts.{number}", _gated(hidden, config.expert_size), False)
    if config.shared_expert_size:
        yield from _linears(f"{prefix}.shared_expert", _gated(hidden, config.shared_expert_size), False)
        yield f"{prefix}.shared_expert_gate.weight", (1, hidden)


def _stacked_experts(prefix: str, config: GptOssConfig) -> Iterator[tuple[str, Shape]]:
    num, hidden, inner = config.num_experts, config.hidden_size, config.intermediate_size
    yield from _linears(prefix, {"router": (num, hidden)}, True)
    for name, shape in (("gate_up_proj", (hidden, 2 * inner)), ("down_proj", (inner, hidden))):
        yield f"{prefix}.experts.{name}", (num, *shape)
        yield f"{prefix}.experts.{name}_bias", (num, shape[1])


def _gated(hidden: int, inner: int) -> dict[str, Shape]:
    return {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}


def _fields(architecture: str, model_type: str) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "float32",
    }


def _linears(prefix: str, shapes: Mapping[str, Shape], bias: bool) -> Iterator[tuple[str, Shape]]:
    for name, shape in shapes.items():
        yield f"{prefix}.{name}.weight", shape
        if bias:
            yield f"{prefix}.{name}.bias", shape[:1]


def _random(name: str, shape: Shape, generator: torch.Generator, norm: float) -> torch.Tensor:
    """`norm`: about what a normalisation's weights are."""
    values = torch.randn(shape, generator=generator)
    if not shape:
        return torch.tensor(-1e-6 if name.endswith(".eps") else 0.5)
    if len(shape) == 1:
        norm = 1.0 if name.endswith("linear_attn.norm.weight") else norm
        return 0.1 * values if name.endswith(".bias") else norm + 0.1 * values
    return values / math.sqrt(shape[1])


def _save_shards(folder: Path, tensors: dict[str, torch.Tensor], num_shards: int) -> None:
    weight_map = {
        name: f"model-{1 + index % num_shards:05}-of-{num_shards:05}.safetensors" for index, name in enumerate(tensors)
    }
    for file in sorted(set(weight_map.values())):
        part = {name: tensors[name] for name, place in weight_map.items() if place == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
