"""Tiny models of families whose attention keeps latents."""

from typing import Any

from fairlead_engine_testing.tiny_families.family import TinyFamily, tiny_fields

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


def glm4_moe_lite_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny GLM-4.7-Flash, with changes; its first layer has no experts."""
    own = {"q_lora_rank": 32, "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.8}
    return {**tiny_fields("Glm4MoeLiteForCausalLM", "glm4_moe_lite"), **_LATENT, **own, **changes}


def deepseek_v2_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny DeepSeek-V2, with changes; its queries come through no narrower vector, as Lite's."""
    experts = {"topk_method": "greedy", "routed_scaling_factor": 1.5, "norm_topk_prob": False, "n_group": 1}
    own = {"q_lora_rank": None, "topk_group": 1}
    return {**tiny_fields("DeepseekV2ForCausalLM", "deepseek_v2"), **_LATENT, **experts, **own, **changes}


def deepseek_v3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny DeepSeek-V3, with changes. Positions are stretched, and with them its scores."""
    experts = {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "n_group": 4}
    own = {"q_lora_rank": 32, "topk_group": 2, "routed_scaling_factor": 2.5, "n_routed_experts": 8}
    rope = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "mscale": 1.0}
    scaling = {"rope_scaling": {**rope, "mscale_all_dim": 0.8, "beta_fast": 32, "beta_slow": 1}}
    return {**tiny_fields("DeepseekV3ForCausalLM", "deepseek_v3"), **_LATENT, **experts, **own, **scaling, **changes}


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


def mistral4_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Mistral 4, with changes; its positions are stretched, and its queries grow."""
    rope = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 16}
    rope |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4}
    own = {"q_lora_rank": 32, "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
    fields = {**tiny_fields("Mistral4ForCausalLM", "mistral4"), **_LATENT, **own, "first_k_dense_replace": 0}
    return {**fields, "rope_parameters": {**rope, "partial_rotary_factor": 8 / 24}, **changes}


def youtu_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Youtu-LLM, with changes."""
    latent = {name: size for name, size in _LATENT.items() if "expert" not in name and "moe" not in name}
    del latent["first_k_dense_replace"]
    return {**tiny_fields("YoutuForCausalLM", "youtu"), **latent, "q_lora_rank": 32, **changes}


FAMILIES = (
    TinyFamily(
        "mistral4",
        mistral4_fields,
        calls="mistral",
        shapes={
            "groups": {
                "num_hidden_layers": 3,
                "first_k_dense_replace": 1,
                "n_routed_experts": 9,
                "n_group": 3,
                "topk_group": 2,
                "num_experts_per_tok": 4,
                "norm_topk_prob": False,
                "routed_scaling_factor": 1.7,
                "q_lora_rank": None,
                "rope_interleave": False,
                "n_shared_experts": 2,
                "tie_word_embeddings": True,
            },
        },
    ),
    TinyFamily(
        "youtu",
        youtu_fields,
        shapes={
            "odd": {
                "num_hidden_layers": 3,
                "q_lora_rank": None,
                "rope_interleave": False,
                "tie_word_embeddings": True,
                "num_attention_heads": 3,
                "num_key_value_heads": 3,
                "v_head_dim": 20,
                "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            },
        },
    ),
    TinyFamily(
        "glm4_moe_lite",
        glm4_moe_lite_fields,
        gguf="DEEPSEEK2",
        shapes={
            "kinds": {
                "num_hidden_layers": 3,
                "mlp_layer_types": ["sparse", "dense", "sparse"],
                "n_routed_experts": 8,
                "n_group": 4,
                "topk_group": 2,
                "q_lora_rank": None,
                "attention_bias": False,
                "rope_interleave": False,
                "n_shared_experts": 1,
            },
        },
    ),
    TinyFamily(
        "deepseek_v2",
        deepseek_v2_fields,
        gguf="DEEPSEEK2",
        shapes={
            "lite": {
                "num_hidden_layers": 3,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 128,
                    "mscale": 0.707,
                    "mscale_all_dim": 0.707,
                },
            },
            "narrow-queries": {
                "q_lora_rank": 36,
                "attention_bias": True,
                "topk_method": "group_limited_greedy",
                "n_routed_experts": 9,
                "n_group": 3,
                "topk_group": 2,
                "num_experts_per_tok": 4,
                "num_attention_heads": 8,
                "num_key_value_heads": 8,
                "rms_norm_eps": 0.01,
                "routed_scaling_factor": 4.0,
                "n_shared_experts": 1,
                "first_k_dense_replace": 0,
            },
        },
    ),
    TinyFamily(
        "deepseek_v3",
        deepseek_v3_fields,
        calls="deepseek_v3",
        gguf="DEEPSEEK2",
        shapes={
            "kimi-k2": {
                "n_group": 1,
                "topk_group": 1,
                "routed_scaling_factor": 2.827,
                "rope_theta": 50_000.0,
                "num_key_value_heads": 4,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 32.0,
                    "original_max_position_embeddings": 64,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                    "beta_fast": 1.0,
                    "beta_slow": 1.0,
                },
            },
            "halves": {
                "rope_interleave": False,
                "q_lora_rank": None,
                "rope_scaling": None,
                "norm_topk_prob": False,
                "n_group": 2,
                "topk_group": 1,
                "v_head_dim": 12,
                "qk_rope_head_dim": 6,
                "kv_lora_rank": 20,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "tie_word_embeddings": True,
            },
        },
    ),
    TinyFamily(
        "deepseek_v32",
        deepseek_v32_fields,
        shapes={
            "one-token": {
                "index_topk": 1,
                "index_head_dim": 6,
                "index_n_heads": 5,
                "qk_rope_head_dim": 6,
                "kv_lora_rank": 20,
                "v_head_dim": 12,
                "num_attention_heads": 1,
                "num_key_value_heads": 1,
                "attention_bias": True,
                "rope_scaling": None,
                "mlp_layer_types": ["sparse", "dense"],
                "tie_word_embeddings": True,
            },
            "long": {
                "index_topk": 60,
                "index_n_heads": 7,
                "index_head_dim": 22,
                "num_hidden_layers": 3,
            },
            "whole": {
                "index_topk": 300,
            },
        },
    ),
    TinyFamily(
        "glm_moe_dsa",
        glm_moe_dsa_fields,
        calls="glm45",
        gguf="GLM_DSA",
        shapes={
            "rhythm": {
                "num_hidden_layers": 6,
                "indexer_types": None,
                "index_topk_freq": 2,
                "index_skip_topk_offset": 3,
                "first_k_dense_replace": 0,
                "index_topk": 7,
                "n_group": 2,
                "topk_group": 1,
                "rope_scaling": None,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 5000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 64,
                    "mscale": 1.0,
                    "mscale_all_dim": 0.7,
                },
            },
            "pattern": {
                "num_hidden_layers": 4,
                "indexer_types": None,
                "index_topk_pattern": "FSSF",
                "index_topk": 25,
                "index_head_dim": 18,
                "mlp_layer_types": ["sparse", "dense", "dense", "sparse"],
                "attention_bias": True,
            },
        },
    ),
)
