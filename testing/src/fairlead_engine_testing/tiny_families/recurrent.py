"""Tiny models of families with layers that keep a state."""

from typing import Any

from fairlead_engine_testing.tiny_families.family import LLAMA3_ROPE, TinyFamily, tiny_fields

_RECURRENT = {
    "head_dim": 16, "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 12, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip


def qwen3_next_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Qwen3-Next, with changes."""
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    own = {"shared_expert_intermediate_size": 64, "partial_rotary_factor": 0.25, "num_nextn_predict_layers": 0}
    return {**tiny_fields("Qwen3NextForCausalLM", "qwen3_next"), **_RECURRENT, **experts, **own, **changes}


def qwen3_5_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of the text part of a tiny Qwen3.5, with changes."""
    own = {"partial_rotary_factor": 0.25}
    return {**tiny_fields("Qwen3_5ForCausalLM", "qwen3_5_text"), **_RECURRENT, **own, **changes}


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
    fields = tiny_fields("GraniteMoeHybridForCausalLM", "granitemoehybrid")
    return {**fields, "head_dim": 16, **_MAMBA, **experts, **factors, **own, **changes}


def bamba_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Bamba, with changes; halves of its heads are turned."""
    own = {"head_dim": 16, "num_hidden_layers": 3, "attn_layer_indices": [1], "pad_token_id": 0}
    return {**tiny_fields("BambaForCausalLM", "bamba"), **_MAMBA, **own, **changes}


def falcon_h1_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Falcon-H1, with changes; it has a factor wherever there may be some."""
    factors: dict[str, Any] = {"embedding_multiplier": 2.0, "lm_head_multiplier": 0.7, "key_multiplier": 0.4}
    factors |= {"attention_in_multiplier": 1.3, "attention_out_multiplier": 0.9, "mlp_multipliers": [0.8, 0.6]}
    factors |= {"ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.5, "ssm_multipliers": [0.7, 1.2, 0.4, 1.5, 0.8]}
    own = {"head_dim": 16, "mamba_d_ssm": 128, "mamba_rms_norm": False, "pad_token_id": 0}
    return {**tiny_fields("FalconH1ForCausalLM", "falcon_h1"), **_MAMBA, **factors, **own, **changes}


def nemotron_h_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Nemotron-H, with changes; its layers are of all kinds."""
    mamba = {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 12, "conv_kernel": 4}
    experts = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1}
    own = {"topk_group": 1, "moe_shared_expert_intermediate_size": 64, "routed_scaling_factor": 1.5}
    kept = {"hybrid_override_pattern": "M-*EM", "head_dim": 16, "layer_norm_epsilon": 1e-5, "num_hidden_layers": 5}
    fields = tiny_fields("NemotronHForCausalLM", "nemotron_h")
    return {**fields, **mamba, **experts, **own, **kept, "mlp_hidden_act": "relu2", **changes}


def lfm2_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny LFM2, with changes; its feed-forwards are narrower than the file says."""
    own = {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "norm_eps": 1e-5}
    return {**tiny_fields("Lfm2ForCausalLM", "lfm2"), **own, "block_multiple_of": 32, "pad_token_id": 0, **changes}


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


FAMILIES = (
    TinyFamily(
        "qwen3_next",
        qwen3_next_fields,
        gguf="QWEN3NEXT",
        shapes={
            "yarn": {
                "partial_rotary_factor": 0.5,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            },
        },
    ),
    TinyFamily(
        "qwen3_5",
        qwen3_5_fields,
        gguf="QWEN35",
        shapes={
            "llama3-rope": {
                "rope_scaling": LLAMA3_ROPE,
                "partial_rotary_factor": 0.375,
            },
        },
    ),
    TinyFamily("qwen3_5_moe", qwen3_5_moe_fields, gguf="QWEN35MOE"),
    TinyFamily("granite_hybrid", granite_hybrid_fields, gguf="GRANITE_HYBRID"),
    TinyFamily(
        "bamba",
        bamba_fields,
        gguf="GRANITE_HYBRID",
        shapes={
            "biases": {
                "num_hidden_layers": 5,
                "attn_layer_indices": [0, 4],
                "hidden_size": 72,
                "num_attention_heads": 6,
                "num_key_value_heads": 3,
                "head_dim": 20,
                "mamba_n_heads": 9,
                "mamba_d_head": "auto",
                "mamba_n_groups": 3,
                "mamba_d_state": 5,
                "mamba_d_conv": 3,
                "mamba_proj_bias": True,
                "attention_bias": True,
                "mlp_bias": True,
                "tie_word_embeddings": True,
            },
            "whole-heads": {
                "attn_layer_indices": [2],
                "mamba_n_groups": 1,
                "mamba_conv_bias": False,
                "mamba_expand": 3,
                "mamba_d_head": 24,
                "rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 1.0, "rope_type": "default"},
                "time_step_limit": [0.0, {"__float__": "Infinity"}],
            },
            "share-beside": {
                "partial_rotary_factor": 1.0,
            },
        },
    ),
    TinyFamily(
        "falcon_h1",
        falcon_h1_fields,
        gguf="FALCON_H1",
        shapes={
            "normed": {
                "num_hidden_layers": 3,
                "hidden_size": 72,
                "num_attention_heads": 6,
                "num_key_value_heads": 3,
                "head_dim": 20,
                "mamba_d_ssm": None,
                "mamba_n_heads": 9,
                "mamba_d_head": "auto",
                "mamba_n_groups": 3,
                "mamba_d_state": 5,
                "mamba_d_conv": 3,
                "mamba_conv_bias": False,
                "mamba_rms_norm": True,
                "mamba_norm_before_gate": False,
                "projectors_bias": True,
                "tie_word_embeddings": True,
            },
            "biases": {
                "mamba_rms_norm": True,
                "mamba_proj_bias": True,
                "attention_bias": True,
                "mlp_bias": True,
                "mlp_multipliers": None,
                "ssm_multipliers": None,
                "num_key_value_heads": 1,
            },
        },
    ),
    TinyFamily(
        "nemotron_h",
        nemotron_h_fields,
        calls="nemotron",
        gguf="NEMOTRON_H_MOE",
        shapes={
            "latents": {
                "hybrid_override_pattern": None,
                "layers_block_type": [
                    "mlp",
                    "moe",
                    "mamba",
                    "attention",
                    "moe",
                    "mlp",
                    "full_attention",
                    "linear_attention",
                ],
                "hidden_size": 72,
                "num_attention_heads": 6,
                "num_key_value_heads": 3,
                "head_dim": 20,
                "mamba_num_heads": 9,
                "mamba_head_dim": 11,
                "mamba_n_groups": 3,
                "ssm_state_size": 5,
                "mamba_d_conv": 3,
                "use_bias": True,
                "mlp_bias": True,
                "n_routed_experts": 8,
                "n_group": 4,
                "topk_group": 2,
                "num_experts_per_tok": 3,
                "moe_latent_size": 24,
                "norm_topk_prob": False,
            },
            "longer-steps": {
                "time_step_min": 1.4,
            },
            "attention-alone": {
                "hybrid_override_pattern": "*-*",
                "use_conv_bias": False,
            },
            "states-first": {
                "hybrid_override_pattern": "MM*M-M",
                "use_conv_bias": False,
            },
        },
    ),
    TinyFamily(
        "lfm2",
        lfm2_fields,
        calls="lfm2",
        gguf="LFM2",
        shapes={
            "odd": {
                "num_hidden_layers": 5,
                "layer_types": None,
                "full_attn_idxs": [1, 2],
                "hidden_size": 72,
                "num_attention_heads": 6,
                "num_key_value_heads": 3,
                "conv_bias": True,
                "conv_L_cache": 5,
                "block_ff_dim": 100,
                "block_auto_adjust_ff_dim": False,
                "tie_word_embeddings": False,
            },
            "one-token": {
                "conv_L_cache": 1,
                "block_ffn_dim_multiplier": 1.3,
                "num_key_value_heads": 1,
            },
            "attends": {
                "layer_types": None,
                "block_ffn_dim_multiplier": 0.7,
                "block_multiple_of": 7,
            },
        },
    ),
    TinyFamily(
        "lfm2_moe",
        lfm2_moe_fields,
        calls="lfm2",
        gguf="LFM2MOE",
        shapes={
            "odd": {
                "num_hidden_layers": 4,
                "layer_types": ["conv", "conv", "full_attention", "conv"],
                "use_expert_bias": False,
                "norm_topk_prob": False,
                "routed_scaling_factor": 1.7,
                "num_dense_layers": 2,
                "conv_bias": True,
            },
        },
    ),
    TinyFamily(
        "lfm3",
        lfm3_fields,
        calls="lfm2",
        shapes={
            "odd": {
                "num_hidden_layers": 7,
                "layer_types": None,
                "hidden_size": 72,
                "num_attention_heads": 6,
                "num_key_value_heads": 3,
                "head_dim": 20,
                "sliding_window": 5,
                "conv_bias": True,
                "conv_L_cache": 7,
                "attention_bias": True,
                "tie_word_embeddings": False,
                "use_sandwich_norm": False,
            },
            "attends": {
                "num_hidden_layers": 2,
                "layer_types": ["sliding_attention", "full_attention"],
                "use_attention_gate": False,
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
                    "full_attention": {"rope_type": "default", "rope_theta": 900.0},
                },
            },
        },
    ),
)
