"""Tiny models of families with sparse experts."""

from typing import Any

from fairlead_engine_testing.tiny_families.dense import cohere2_fields, exaone4_fields, gemma4_fields, granite_fields
from fairlead_engine_testing.tiny_families.family import LLAMA3_ROPE, TinyFamily, tiny_fields


def granite_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Granite with experts, with changes."""
    fields = granite_fields(num_local_experts=4, num_experts_per_tok=2, logits_scaling=1.0)
    return {**fields, "architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", **changes}


def hunyuan_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Hunyuan with experts, with changes."""
    experts = {"num_experts": 6, "moe_topk": 2, "intermediate_size": 32}
    return {**tiny_fields("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe"), "head_dim": 24, **experts, **changes}


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
    return {**tiny_fields("Llama4ForCausalLM", "llama4_text"), **experts, **own, **layers, **changes}


def mixtral_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Mixtral, with changes."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
    return {**tiny_fields("MixtralForCausalLM", "mixtral"), "head_dim": 16, **experts, **changes}


def olmoe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny OLMoE, with changes."""
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32, "norm_topk_prob": False}
    return {**tiny_fields("OlmoeForCausalLM", "olmoe"), **experts, **changes}


def cohere2_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Cohere 2 with experts, with changes; its first layer has none, and its last sees all,
    without positions."""
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32, "num_shared_experts": 2}
    own = {"prefix_dense_intermediate_size": 96, "mlp_layer_types": ["dense", "sparse"], "rms_norm_eps": None}
    fields = cohere2_fields(head_dim=16, **experts, **own)
    return {**fields, "architectures": ["Cohere2MoeForCausalLM"], "model_type": "cohere2_moe", **changes}


def ernie4_5_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny ERNIE 4.5 with experts, with changes; its first layer has none."""
    experts = {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 2}
    own = {"tie_word_embeddings": True, "moe_layer_start_index": 1}
    return {**tiny_fields("Ernie4_5_MoeForCausalLM", "ernie4_5_moe"), "use_bias": False, **experts, **own, **changes}


def exaone_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny K-EXAONE, with changes; its first layer has no experts, and its second no
    positions."""
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_shared_experts": 1}
    own = {"architectures": ["ExaoneMoeForCausalLM"], "model_type": "exaone_moe", "first_k_dense_replace": 1}
    return exaone4_fields(**{"pad_token_id": 0, **own, **experts, **changes})


def hunyuan_3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Hunyuan 3, with changes; its first layer has no experts."""
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_shared_experts": 1}
    return {**tiny_fields("HYV3ForCausalLM", "hy_v3"), "head_dim": 24, **experts, **changes}


def solar_open_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Solar Open, with changes; all layers have experts."""
    experts = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
    return {**tiny_fields("SolarOpenForCausalLM", "solar_open"), "head_dim": 24, **experts, **changes}


def dots1_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny dots.llm1, with changes; its first layer has no experts."""
    experts = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 2}
    routing = {"norm_topk_prob": True, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1}
    return {**tiny_fields("Dots1ForCausalLM", "dots1"), "sliding_window": None, **experts, **routing, **changes}


def phimoe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Phi-3.5-MoE, with changes."""
    experts = {"num_local_experts": 3, "num_experts_per_tok": 2, "router_jitter_noise": 0.01, "lm_head_bias": True}
    own = {"sliding_window": 20, "attention_bias": True, "rms_norm_eps": 1e-5}
    return {**tiny_fields("PhimoeForCausalLM", "phimoe"), **experts, **own, **changes}


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
    return {**tiny_fields("GptOssForCausalLM", "gpt_oss"), **experts, **own, **layers, **changes}


def glm4_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny GLM-4.5, with changes; its first layer has no experts."""
    experts = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
    routing = {"norm_topk_prob": True, "routed_scaling_factor": 1.5, "n_group": 1, "topk_group": 1}
    own: dict[str, Any] = {"head_dim": 32, "attention_bias": True, "use_qk_norm": True, "first_k_dense_replace": 1}
    own["partial_rotary_factor"] = 0.5
    return {**tiny_fields("Glm4MoeForCausalLM", "glm4_moe"), **experts, **routing, **own, **changes}


def minimax_m2_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny MiniMax-M2, with changes. A half of its heads is turned."""
    experts = {"num_local_experts": 6, "num_experts_per_tok": 2}
    return {**tiny_fields("MiniMaxM2ForCausalLM", "minimax_m2"), "head_dim": 32, "rotary_dim": 16, **experts, **changes}


def qwen3_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Qwen3-MoE, with changes."""
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    return {**tiny_fields("Qwen3MoeForCausalLM", "qwen3_moe"), "head_dim": 32, **experts, **changes}


def qwen2_moe_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Qwen2-MoE, with changes."""
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    shared = {"shared_expert_intermediate_size": 64, "use_sliding_window": False}
    return {**tiny_fields("Qwen2MoeForCausalLM", "qwen2_moe"), **experts, **shared, **changes}


def mellum_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Mellum 2, with changes; its second layer sees a window, with positions of its own."""
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    layers = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 20}
    bases = {"full_attention": 500_000.0, "sliding_attention": 10_000.0}
    rope = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}
    own = {"head_dim": 32, "rope_parameters": rope}
    return {**tiny_fields("MellumForCausalLM", "mellum"), **experts, **layers, **own, **changes}


FAMILIES = (
    TinyFamily(
        "mellum",
        mellum_fields,
        shapes={
            "some-dense": {
                "num_hidden_layers": 3,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "mlp_layer_types": ["sparse", "dense", "sparse"],
                "num_experts": 5,
                "num_experts_per_tok": 3,
                "norm_topk_prob": False,
                "attention_bias": True,
                "num_key_value_heads": 1,
                "rope_parameters": {
                    "full_attention": {
                        "rope_type": "yarn",
                        "rope_theta": 500.0,
                        "factor": 4.0,
                        "original_max_position_embeddings": 64,
                    },
                    "sliding_attention": {"rope_type": "default", "rope_theta": 900.0},
                },
            },
            "plain": {"layer_types": None, "rope_parameters": None, "tie_word_embeddings": True},
        },
    ),
    TinyFamily(
        "granite_moe",
        granite_moe_fields,
        gguf="GRANITE_MOE",
        shapes={
            "untied": {
                "tie_word_embeddings": False,
                "attention_bias": True,
                "num_local_experts": 5,
                "num_experts_per_tok": 3,
                "intermediate_size": 64,
                "logits_scaling": 0.5,
            },
        },
    ),
    TinyFamily(
        "hunyuan_moe",
        hunyuan_moe_fields,
        gguf="HUNYUAN_MOE",
        shapes={
            "lists": {
                "num_hidden_layers": 3,
                "moe_topk": [3, 3, 3],
                "num_experts": 5,
                "num_shared_expert": [1, 1, 1],
                "norm_topk_prob": True,
                "moe_intermediate_size": [48, 48, 48],
                "intermediate_size": 48,
                "tie_word_embeddings": True,
                "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
                "use_cla": False,
                "use_qk_norm": True,
            },
        },
    ),
    TinyFamily(
        "llama4",
        llama4_fields,
        gguf="LLAMA4",
        shapes={
            "top-2": {
                "num_hidden_layers": 5,
                "no_rope_layers": None,
                "num_experts_per_tok": 2,
                "num_local_experts": 5,
                "moe_layers": [0, 3],
                "attention_chunk_size": 7,
                "attention_bias": True,
                "intermediate_size": 64,
            },
            "maverick": {
                "use_qk_norm": False,
                "attn_temperature_tuning": False,
                "num_key_value_heads": 1,
                "interleave_moe_layer_step": 1,
                "rope_scaling": {**LLAMA3_ROPE, "high_freq_factor": 1.0},
                "tie_word_embeddings": True,
                "layer_types": ["full_attention", "chunked_attention"],
            },
        },
    ),
    TinyFamily(
        "mixtral",
        mixtral_fields,
        calls="mistral",
        gguf="LLAMA",
        shapes={
            "window": {
                "sliding_window": 17,
            },
            "tied": {
                "tie_word_embeddings": True,
            },
            "many-experts": {
                "num_local_experts": 9,
                "num_experts_per_tok": 3,
                "rope_theta": 1e6,
            },
            "one-expert": {
                "num_local_experts": 2,
                "num_experts_per_tok": 1,
            },
        },
    ),
    TinyFamily(
        "olmoe",
        olmoe_fields,
        gguf="OLMOE",
        shapes={
            "normalised": {
                "norm_topk_prob": True,
                "num_experts": 5,
                "num_experts_per_tok": 3,
                "attention_bias": True,
                "num_key_value_heads": 1,
                "tie_word_embeddings": True,
            },
        },
    ),
    TinyFamily(
        "cohere2_moe",
        cohere2_moe_fields,
        shapes={
            "sigmoid": {
                "num_hidden_layers": 6,
                "layer_types": None,
                "mlp_layer_types": None,
                "first_k_dense_replace": 2,
                "rms_norm_eps": 1e-5,
                "sliding_window_pattern": 3,
                "expert_selection_fn": "sigmoid",
                "norm_topk_prob": False,
                "num_shared_experts": 1,
                "shared_expert_combination_strategy": "sum",
                "attention_bias": True,
                "tie_word_embeddings": False,
                "num_key_value_heads": 1,
            },
            "plain": {
                "num_hidden_layers": 4,
                "layer_types": None,
                "mlp_layer_types": None,
                "first_k_dense_replace": 2,
                "num_shared_experts": 0,
                "prefix_dense_sliding_window_pattern": 2,
                "expert_selection_fn": "sigmoid",
                "prefix_dense_intermediate_size": None,
            },
        },
    ),
    TinyFamily(
        "ernie4_5_moe",
        ernie4_5_moe_fields,
        gguf="ERNIE4_5_MOE",
        shapes={
            "some-dense": {
                "num_hidden_layers": 6,
                "moe_layer_interval": 2,
                "moe_layer_start_index": 2,
                "moe_layer_end_index": 4,
                "moe_k": 3,
                "moe_num_shared_experts": 0,
                "tie_word_embeddings": False,
                "num_key_value_heads": 1,
            },
            "everywhere": {
                "moe_layer_start_index": 0,
                "moe_layer_end_index": -1,
                "moe_num_shared_experts": 1,
                "head_dim": 24,
            },
        },
    ),
    TinyFamily(
        "exaone_moe",
        exaone_moe_fields,
        gguf="EXAONE_MOE",
        shapes={
            "groups": {
                "num_hidden_layers": 5,
                "layer_types": None,
                "sliding_window_pattern": 3,
                "first_k_dense_replace": 2,
                "num_experts": 9,
                "n_group": 3,
                "topk_group": 2,
                "num_experts_per_tok": 3,
                "num_shared_experts": 2,
                "norm_topk_prob": False,
            },
            "some-dense": {
                "num_hidden_layers": 3,
                "layer_types": ["sliding_attention"] * 3,
                "mlp_layer_types": ["sparse", "dense", "sparse"],
                "tie_word_embeddings": True,
                "num_key_value_heads": 1,
            },
        },
    ),
    TinyFamily(
        "hunyuan_3",
        hunyuan_3_fields,
        shapes={
            "some-dense": {
                "num_hidden_layers": 3,
                "mlp_layer_types": ["sparse", "dense", "sparse"],
                "attention_bias": True,
                "num_experts": 5,
                "num_experts_per_tok": 3,
                "num_shared_experts": 2,
                "router_scaling_factor": 0.7,
                "num_key_value_heads": 1,
            },
        },
    ),
    TinyFamily(
        "solar_open",
        solar_open_fields,
        shapes={
            "groups": {
                "n_routed_experts": 8,
                "n_group": 4,
                "topk_group": 2,
                "num_experts_per_tok": 3,
                "n_shared_experts": 2,
                "attention_bias": True,
                "routed_scaling_factor": 2.5,
                "tie_word_embeddings": True,
                "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
            },
        },
    ),
    TinyFamily(
        "dots1",
        dots1_fields,
        gguf="DOTS1",
        shapes={
            "groups": {
                "num_hidden_layers": 3,
                "head_dim": 24,
                "n_routed_experts": 9,
                "n_group": 3,
                "topk_group": 2,
                "num_experts_per_tok": 3,
                "norm_topk_prob": False,
                "n_shared_experts": 1,
                "sliding_window": 9,
                "max_window_layers": 1,
                "attention_bias": True,
            },
        },
    ),
    TinyFamily(
        "phimoe",
        phimoe_fields,
        gguf="PHIMOE",
        shapes={
            "odd": {
                "num_local_experts": 7,
                "router_jitter_noise": 0.4,
                "lm_head_bias": False,
                "attention_bias": False,
                "sliding_window": None,
                "num_key_value_heads": 1,
                "num_hidden_layers": 3,
            },
        },
    ),
    TinyFamily(
        "gemma4_moe",
        gemma4_moe_fields,
        calls="gemma4",
        gguf="GEMMA4",
        shapes={
            "inputs": {
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "num_kv_shared_layers": 1,
                "use_double_wide_mlp": True,
                "hidden_size_per_layer_input": 6,
                "num_experts": 5,
                "top_k_experts": 3,
                "num_global_key_value_heads": 2,
            },
        },
    ),
    TinyFamily(
        "gpt_oss",
        gpt_oss_fields,
        calls="harmony",
        gguf="GPT_OSS",
        shapes={
            "odd": {
                "num_hidden_layers": 3,
                "layer_types": None,
                "rope_scaling": None,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "num_local_experts": 5,
                "num_experts_per_tok": 3,
                "attention_bias": False,
                "tie_word_embeddings": True,
                "swiglu_alpha": 1.0,
            },
        },
    ),
    TinyFamily(
        "glm4_moe",
        glm4_moe_fields,
        calls="glm45",
        gguf="GLM4_MOE",
        shapes={
            "three-layers": {
                "num_hidden_layers": 3,
            },
            "air": {
                "use_qk_norm": False,
                "first_k_dense_replace": 0,
                "norm_topk_prob": False,
            },
        },
    ),
    TinyFamily("minimax_m2", minimax_m2_fields, calls="minimax_m2", gguf="MINIMAXM2"),
    TinyFamily(
        "qwen3_moe",
        qwen3_moe_fields,
        calls="hermes",
        gguf="QWEN3MOE",
        shapes={
            "some-dense": {
                "mlp_only_layers": [0],
                "norm_topk_prob": False,
                "tie_word_embeddings": True,
            },
        },
    ),
    TinyFamily(
        "qwen2_moe",
        qwen2_moe_fields,
        gguf="QWEN2MOE",
        shapes={
            "some-dense": {
                "num_hidden_layers": 4,
                "decoder_sparse_step": 2,
                "mlp_only_layers": [1],
                "norm_topk_prob": True,
                "qkv_bias": True,
            },
        },
    ),
)
