"""Tiny models of families with one feed-forward in a layer."""

from typing import Any

from fairlead_engine_testing.tiny_families.family import LLAMA3_ROPE, TinyFamily, tiny_fields

_ODD = {
    "num_hidden_layers": 3, "hidden_size": 72, "intermediate_size": 100, "num_attention_heads": 6,
    "num_key_value_heads": 3, "head_dim": 20, "attention_bias": True,
}  # fmt: skip
"""Sizes that are no powers of two, and heads that are wider than hidden size over heads."""
_YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
_GELU = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}


def llama_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Llama, with changes."""
    return {**tiny_fields("LlamaForCausalLM", "llama"), "head_dim": 16, **changes}


def apertus_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Apertus, with changes; its positions are not stretched."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    own = {"hidden_act": "xielu", "rope_parameters": rope, "pad_token_id": 0}
    return {**tiny_fields("ApertusForCausalLM", "apertus"), "head_dim": 16, **own, **changes}


def arcee_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Arcee, with changes."""
    return {**tiny_fields("ArceeForCausalLM", "arcee"), "head_dim": 24, "hidden_act": "relu2", **changes}


def hunyuan_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny dense Hunyuan, with changes; the base of its positions is stretched."""
    rope = {"type": "dynamic", "alpha": 50.0, "factor": 1.0}
    return {
        **tiny_fields("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"), "head_dim": 24, "rope_scaling": rope, **changes
    }  # fmt: skip


def qwen2_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Qwen2, with changes."""
    return {**tiny_fields("Qwen2ForCausalLM", "qwen2"), "use_sliding_window": False, "sliding_window": 64, **changes}


def qwen3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Qwen3, with changes. Its heads are wider than hidden size over heads."""
    return {**tiny_fields("Qwen3ForCausalLM", "qwen3"), "head_dim": 32, **changes}


def mistral_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Mistral, with changes. It sees less than its context."""
    return {**tiny_fields("MistralForCausalLM", "mistral"), "head_dim": 24, "sliding_window": 20, **changes}


def ministral3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Ministral 3, with changes; its positions are stretched, and its queries grow."""
    rope = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "beta_fast": 32.0}
    rope |= {"beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "rope_theta": 1e6, "llama_4_scaling_beta": 0.4}
    return {**tiny_fields("Ministral3ForCausalLM", "ministral3"), "head_dim": 24, "rope_parameters": rope, **changes}


def olmo2_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny OLMo 2, with changes."""
    return {**tiny_fields("Olmo2ForCausalLM", "olmo2"), **changes}


def olmo3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny OLMo 3, with changes; of one layer positions are stretched."""
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    own = {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"], "rope_scaling": rope}
    own["rope_theta"] = 500_000.0
    return {**tiny_fields("Olmo3ForCausalLM", "olmo3"), **own, **changes}


def cohere_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Command R, with changes."""
    own = {"layer_norm_eps": 1e-5, "logit_scale": 1.5, "tie_word_embeddings": True}
    return {**tiny_fields("CohereForCausalLM", "cohere"), **own, **changes}


def cohere2_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Command A, with changes; one of its layers sees all, without positions."""
    own = {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": True}
    return {
        **tiny_fields("Cohere2ForCausalLM", "cohere2"), **own, "layer_norm_eps": 1e-5, "logit_scale": 1.5, **changes
    }  # fmt: skip


def ernie4_5_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny ERNIE 4.5, with changes; its heads are turned by adjacent pairs."""
    return {**tiny_fields("Ernie4_5ForCausalLM", "ernie4_5"), "head_dim": 24, "use_bias": False, **changes}


def glm4_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny GLM-4, with changes; halves of its heads are turned, by adjacent pairs."""
    own = {"head_dim": 32, "attention_bias": True, "partial_rotary_factor": 0.5, "pad_token_id": 0}
    return {**tiny_fields("Glm4ForCausalLM", "glm4"), **own, **changes}


def granite_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Granite, with changes; its output projection is the embedding table."""
    factors = {"embedding_multiplier": 2.0, "residual_multiplier": 0.6, "attention_multiplier": 0.1}
    own = {"logits_scaling": 0.5, "tie_word_embeddings": True}
    return {**tiny_fields("GraniteForCausalLM", "granite"), **factors, **own, **changes}


def exaone4_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny EXAONE 4, with changes; one of its layers sees all, without positions."""
    own = {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]}
    return {**tiny_fields("Exaone4ForCausalLM", "exaone4"), **own, **changes}


def seed_oss_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Seed-OSS, with changes. Its heads are wider than hidden size over heads."""
    own = {"head_dim": 24, "attention_bias": True, "attention_out_bias": False, "mlp_bias": False}
    return {**tiny_fields("SeedOssForCausalLM", "seed_oss"), **own, **changes}


def smollm3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny SmolLM3, with changes; one of its layers has no positions."""
    own = {"no_rope_layers": [1, 0], "tie_word_embeddings": True, "pad_token_id": 0}
    return {**tiny_fields("SmolLM3ForCausalLM", "smollm3"), **own, **changes}


def phi3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Phi-3, with changes. It sees less than its context."""
    return {**tiny_fields("Phi3ForCausalLM", "phi3"), "sliding_window": 20, "pad_token_id": 0, **changes}


def gemma2_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Gemma 2, with changes. It sees less than its context, and its queries are not
    scaled by the size of a head."""
    own = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 20, "tie_word_embeddings": True}
    return {**tiny_fields("Gemma2ForCausalLM", "gemma2"), **_GELU, **own, **changes}


def gemma3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Gemma 3, with changes; one of its layers sees its whole context."""
    own = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 20, "tie_word_embeddings": True}
    layers = {"layer_types": ["sliding_attention", "full_attention"], "rope_theta": 100_000.0}
    rope = {"rope_local_base_freq": 1000.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    return {**tiny_fields("Gemma3ForCausalLM", "gemma3_text"), **_GELU, **own, **layers, **rope, **changes}


def gemma4_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of the text part of a tiny Gemma 4, with changes; the second half of its layers read what the
    first half stored, and each layer has an input of its own."""
    own: dict[str, Any] = {"head_dim": 16, "global_head_dim": 24, "sliding_window": 20, "tie_word_embeddings": True}
    layers = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
    readers = {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}
    inputs = {"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 256, "final_logit_softcapping": 30.0}
    fields = {**tiny_fields("Gemma4ForCausalLM", "gemma4_text"), **_GELU, **own, **layers, **readers, **inputs}
    del fields["rope_theta"]
    return {**fields, **changes}


def cwm_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny CWM, with changes; its first layer sees all."""
    own = {"head_dim": 24, "sliding_window": 20, "layer_types": ["full_attention", "sliding_attention"]}
    return {**tiny_fields("CwmForCausalLM", "cwm"), **own, **changes}


def helium_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Helium, with changes; its heads are turned by adjacent pairs."""
    return {**tiny_fields("HeliumForCausalLM", "helium"), "head_dim": 16, **changes}


def internlm3_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny InternLM3, with changes; its base of positions is stretched."""
    own = {"head_dim": 24, "qkv_bias": False, "bias": False, "rope_scaling": {"rope_type": "dynamic", "factor": 6.0}}
    fields = {**tiny_fields("InternLM3ForCausalLM", "internlm3"), **own, **changes}
    return {name: value for name, value in fields.items() if name != "attention_bias"}


def iquestcoder_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny IQuest-Coder, with changes."""
    return {**tiny_fields("IQuestCoderForCausalLM", "iquestcoder"), "head_dim": 24, **changes}


def ministral_fields(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a tiny Ministral of 2024, with changes; one of its layers sees its whole context."""
    own = {"head_dim": 16, "sliding_window": 20, "layer_types": ["full_attention", "sliding_attention"]}
    return {**tiny_fields("MinistralForCausalLM", "ministral"), **own, **changes}


FAMILIES = (
    TinyFamily(
        "cwm",
        cwm_fields,
        shapes={
            "pattern": {
                "num_hidden_layers": 6,
                "layer_types": None,
                "sliding_window": 7,
                "num_key_value_heads": 1,
                "tie_word_embeddings": True,
                "mlp_bias": True,
                "rope_parameters": {**LLAMA3_ROPE, "rope_theta": 500.0},
            }
        },
    ),
    TinyFamily(
        "helium",
        helium_fields,
        shapes={"odd": {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True, "num_hidden_layers": 3}},
    ),
    TinyFamily(
        "internlm3",
        internlm3_fields,
        shapes={"biases": {"qkv_bias": True, "bias": True, "num_key_value_heads": 1, "tie_word_embeddings": True}},
    ),
    TinyFamily(
        "iquestcoder",
        iquestcoder_fields,
        shapes={"odd": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 20}},
    ),
    TinyFamily(
        "ministral",
        ministral_fields,
        calls="mistral",
        shapes={
            "windows-alone": {"layer_types": None, "sliding_window": 7, "num_key_value_heads": 1},
            "whole": {"layer_types": ["full_attention"] * 2, "head_dim": 24},
        },
    ),
    TinyFamily(
        "llama",
        llama_fields,
        calls="llama3_json",
        gguf="LLAMA",
        shapes={
            "tied": {"tie_word_embeddings": True},
            "biases": {"attention_bias": True, "mlp_bias": True},
            "one-kv-head": {"num_key_value_heads": 1, "num_hidden_layers": 3},
            "all-kv-heads": {"num_key_value_heads": 4, "head_dim": 8},
            "wide-heads": {"head_dim": 64, "hidden_size": 32},
            "one-layer": {"num_hidden_layers": 1},
            "linear-rope": {"rope_scaling": {"type": "linear", "factor": 4.0}},
            "llama3-rope": {"rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE},
            "rope-parameters": {"rope_parameters": {**LLAMA3_ROPE, "rope_theta": 500.0}},
            "dynamic-rope": {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
            "yarn-mscale": {
                "rope_scaling": {**_YARN, "mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 20.0, "beta_slow": 2.0}
            },
            "yarn-factor": {"rope_scaling": {**_YARN, "attention_factor": 1.1, "truncate": False}},
        },
    ),
    TinyFamily(
        "apertus",
        apertus_fields,
        calls="apertus",
        gguf="APERTUS",
        shapes={"odd": {**_ODD, "tie_word_embeddings": True, "rope_parameters": None, "rope_theta": 500.0}},
    ),
    TinyFamily(
        "arcee",
        arcee_fields,
        gguf="ARCEE",
        shapes={
            "odd": {
                **_ODD,
                "mlp_bias": True,
                "tie_word_embeddings": True,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
            }
        },
    ),
    TinyFamily(
        "hunyuan",
        hunyuan_fields,
        gguf="HUNYUAN_DENSE",
        shapes={
            "plain": {
                "rope_scaling": None,
                "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
                "head_dim": 32,
                "num_key_value_heads": 1,
                "attention_bias": True,
                "tie_word_embeddings": True,
            }
        },
    ),
    TinyFamily(
        "qwen2",
        qwen2_fields,
        calls="hermes",
        gguf="QWEN2",
        shapes={
            "yarn": {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
            "tied": {"tie_word_embeddings": True, "rope_theta": 1e6},
            "whole-layers": {"use_sliding_window": True, "layer_types": ["full_attention"] * 2},
            "windows": {
                "num_hidden_layers": 3,
                "use_sliding_window": True,
                "sliding_window": 9,
                "max_window_layers": 1,
            },
        },
    ),
    TinyFamily(
        "qwen3",
        qwen3_fields,
        calls="hermes",
        gguf="QWEN3",
        shapes={
            "windows": {
                "use_sliding_window": True,
                "sliding_window": 30,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            "tied": {"tie_word_embeddings": True},
            "biases": {"attention_bias": True},
            "wide-groups": {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 24, "rope_theta": 1e6},
        },
    ),
    TinyFamily(
        "mistral",
        mistral_fields,
        calls="mistral",
        gguf="LLAMA",
        shapes={"whole": {"sliding_window": None}, "one-token": {"sliding_window": 1, "num_key_value_heads": 1}},
    ),
    TinyFamily(
        "ministral3",
        ministral3_fields,
        gguf="MISTRAL3",
        shapes={
            "window": {
                "sliding_window": 9,
                "num_key_value_heads": 1,
                "tie_word_embeddings": True,
                "num_hidden_layers": 3,
            }
        },
    ),
    TinyFamily(
        "olmo2",
        olmo2_fields,
        gguf="OLMO2",
        shapes={"one-kv-head": {"num_key_value_heads": 1, "attention_bias": True, "tie_word_embeddings": True}},
    ),
    TinyFamily(
        "olmo3",
        olmo3_fields,
        calls="function_calls",
        gguf="OLMO2",
        shapes={"pattern": {"num_hidden_layers": 5, "layer_types": None}},
    ),
    TinyFamily(
        "cohere",
        cohere_fields,
        gguf="COMMAND_R",
        shapes={
            "odd": {
                "num_hidden_layers": 3,
                "num_key_value_heads": 1,
                "attention_bias": True,
                "rope_scaling": {"type": "linear", "factor": 3.0},
            }
        },
    ),
    TinyFamily(
        "cohere2",
        cohere2_fields,
        calls="command",
        gguf="COHERE2",
        shapes={
            "windows-alone": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 5},
            "pattern": {"num_hidden_layers": 5, "layer_types": None, "attention_bias": True},
        },
    ),
    TinyFamily(
        "ernie4_5",
        ernie4_5_fields,
        gguf="ERNIE4_5",
        shapes={"biases": {"use_bias": True, "num_key_value_heads": 1, "tie_word_embeddings": True}},
    ),
    TinyFamily(
        "glm4",
        glm4_fields,
        gguf="GLM4",
        shapes={
            "one-kv-head": {"num_key_value_heads": 1, "attention_bias": False, "num_hidden_layers": 3},
            "linear-rope": {"rope_scaling": {"type": "linear", "factor": 4.0}},
        },
    ),
    TinyFamily(
        "granite",
        granite_fields,
        calls="granite",
        gguf="GRANITE",
        shapes={"untied": {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}},
    ),
    TinyFamily(
        "exaone4",
        exaone4_fields,
        calls="hermes",
        gguf="EXAONE4",
        shapes={
            "windows-alone": {"num_hidden_layers": 3, "layer_types": None},
            "pattern": {"num_hidden_layers": 5, "layer_types": None},
            "without-windows": {"sliding_window": None, "layer_types": ["full_attention"] * 2},
        },
    ),
    TinyFamily("seed_oss", seed_oss_fields, calls="seed_oss", gguf="SEED_OSS"),
    TinyFamily(
        "smollm3",
        smollm3_fields,
        calls="hermes",
        gguf="SMOLLM3",
        shapes={"interval": {"num_hidden_layers": 5, "no_rope_layers": None, "no_rope_layer_interval": 2}},
    ),
    TinyFamily(
        "phi3",
        phi3_fields,
        calls="phi4",
        gguf="PHI3",
        shapes={
            "mini": {"partial_rotary_factor": 0.75, "tie_word_embeddings": True, "sliding_window": None},
            "one-kv-head": {"num_key_value_heads": 1, "sliding_window": None, "tie_word_embeddings": True},
        },
    ),
    TinyFamily(
        "gemma2",
        gemma2_fields,
        gguf="GEMMA2",
        shapes={
            "untied": {
                "num_hidden_layers": 3,
                "tie_word_embeddings": False,
                "attn_logit_softcapping": 5.0,
                "final_logit_softcapping": None,
                "num_key_value_heads": 1,
            }
        },
    ),
    TinyFamily(
        "gemma3",
        gemma3_fields,
        gguf="GEMMA3",
        shapes={
            "pattern": {"num_hidden_layers": 7, "layer_types": None, "rope_scaling": None},
            "newer": {
                "rope_scaling": None,
                "attention_bias": True,
                "rope_theta": None,
                "rope_local_base_freq": None,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 2000.0},
                },
            },
        },
    ),
    TinyFamily(
        "gemma4",
        gemma4_fields,
        calls="gemma4",
        gguf="GEMMA4",
        shapes={
            "keys-as-values": {
                "num_hidden_layers": 7,
                "layer_types": None,
                "num_kv_shared_layers": 0,
                "use_double_wide_mlp": False,
                "hidden_size_per_layer_input": 0,
                "attention_k_eq_v": True,
                "num_global_key_value_heads": 1,
                "num_attention_heads": 6,
                "num_key_value_heads": 3,
                "head_dim": 12,
                "global_head_dim": 20,
                "sliding_window": 9,
                "tie_word_embeddings": False,
                "final_logit_softcapping": None,
                "rope_parameters": {
                    "full_attention": {
                        "rope_type": "proportional",
                        "rope_theta": 500.0,
                        "partial_rotary_factor": 0.5,
                        "factor": 3.0,
                    },
                    "sliding_attention": {"rope_type": "default", "rope_theta": 2000.0},
                },
            },
            "one-shape": {"head_dim": 24, "rope_parameters": None, "per_layer_config": {}},
            "readers": {
                "num_hidden_layers": 5,
                "layer_types": ["full_attention", "sliding_attention", "full_attention"] + ["sliding_attention"] * 2,
                "num_kv_shared_layers": 3,
                "use_double_wide_mlp": False,
                "attention_bias": True,
                "vocab_size_per_layer_input": 300,
                "num_key_value_heads": 1,
            },
            "per-layer-config": {
                "head_dim": 20,
                "per_layer_config": {str(index): {"head_dim": 16, "num_key_value_heads": 4} for index in (0, 2)},
            },
        },
    ),
)
