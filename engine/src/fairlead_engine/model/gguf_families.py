"""Architectures of GGUF files: Hugging Face's names of fields and tensors, by the public conventions of llama.cpp.

Names and keys are those of the `gguf` package. Files differ from checkpoints in a few ways beside names: experts of a
layer lie in one tensor, Gemma's normalisations have 1 added, and heads of Llama's relatives have the two numbers of a
rotation side by side.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fairlead_common.models.gguf_file import GgufFile
from fairlead_engine.errors import ModelLoadError, ModelLoadReason

_MOST = 2**20
"""Largest count of layers, experts or elements of a head."""


class GgufMetadata:
    """The values below the name of an architecture. Raises ModelLoadError, naming the key."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self.file = file
        self._architecture = architecture

    def value(self, key: str) -> Any:
        """None = absent."""
        return self.file.metadata.get(self.full(key))

    def full(self, key: str) -> str:
        return f"{self._architecture}.{key}"

    def count(self, key: str, default: int = 0) -> int:
        """A whole number."""
        value = self.value(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
            self.file.refuse(f"has {value!r:.80} as {self.full(key)}, which must be a whole number up to {_MOST}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.value(key)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < float("inf"):
            self.file.refuse(f"has {value!r:.80} as {self.full(key)}, which must be a number")
        return float(value)

    def has(self, tensor: str) -> bool:
        return f"{tensor}.weight" in self.file.tensors

    def has_bias(self, tensor: str) -> bool:
        return f"{tensor}.bias" in self.file.tensors

    @property
    def num_layers(self) -> int:
        """Without layers that predict one token further."""
        return max(0, self.count("block_count") - self.count("nextn_predict_layers"))


def unsupported(file: GgufFile, name: str, value: object, remedy: str) -> ModelLoadError:
    """The error for a value that no layer computes, to be raised by the caller."""
    return ModelLoadError(
        ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
        f"{file.path.name}: {name} is {value!r:.200}, which this engine lacks; {remedy}",
    )


Fields = Callable[[GgufMetadata], dict[str, Any]]
"""Fields of `config.json` that follow from several values."""


def _nothing(_: GgufMetadata) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """One architecture."""

    architecture: str
    """As `config.json` spells it."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Fields of `config.json` and their keys, beside those of all architectures."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names of a layer's tensors in the file and in checkpoints, where they differ from `LAYER_NAMES`."""
    more: Fields = _nothing
    is_interleaved: bool = False
    """Whether rows of queries and keys have the two numbers of a rotation side by side, unlike the checkpoint's."""
    norm_offset: float = 0.0
    """Added to the weights of normalisations."""
    weaves_gate_up: bool = False
    """Whether rows of an expert's gate and up projections lie by turns in one tensor of the checkpoint."""
    has_head_dim: bool = True
    """Whether `attention.key_length` is the size of a head."""


WHOLE_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
}
"""By the name of a tensor in a layer, or by that with its kind; `{}` = the number of an expert."""


def _moved(place: str) -> dict[str, str]:
    """Names of the feed-forward part in another place than `mlp`."""
    return {name: own.replace("mlp.", f"{place}.", 1) for name, own in LAYER_NAMES.items() if own.startswith("mlp.")}


def _shared(name: str) -> dict[str, str]:
    """Names of an expert for all tokens, by that of its place."""
    return {f"ffn_{kind}_shexp": f"{name}.{kind}_proj" for kind in ("gate", "up", "down")}


_MIXTRAL_NAMES = {
    **{f"ffn_{kind}_exps": f"block_sparse_moe.experts.{{}}.w{number}" for kind, number in
       (("gate", 1), ("down", 2), ("up", 3))},
    "ffn_gate_inp": "block_sparse_moe.gate",
    "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias",
}  # fmt: skip
_UPDATES_NORMED = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA_NAMES = {**_UPDATES_NORMED, "ffn_norm": "pre_feedforward_layernorm"}
_SECOND_NORM = {"post_attention_norm": "post_attention_layernorm"}
_HUNYUAN_NORMS = {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}
_WINDOW = {"sliding_window": "attention.sliding_window"}
_CHOSEN = {"num_experts_per_tok": "expert_used_count"}
_NARROW = {"moe_intermediate_size": "expert_feed_forward_length"}
_LOCAL_EXPERTS = {"num_local_experts": "expert_count", **_CHOSEN}
_GRANITE_KEYS = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
_ROUTED_KEYS = {
    "n_routed_experts": "expert_count",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "routed_scaling_factor": "expert_weights_scale",
    **_CHOSEN,
    **_NARROW,
}


def _layer_types(values: GgufMetadata) -> dict[str, Any]:
    """Kinds of layers, where the file has a list."""
    pattern = values.value("attention.sliding_window_pattern")
    if not isinstance(pattern, list):
        return {}
    return {"layer_types": ["sliding_attention" if each else "full_attention" for each in pattern]}


def _gemma(largest: int) -> Fields:
    """`largest`: layers of the one size whose queries are scaled by the width of a head in the hidden size."""

    def fields(values: GgufMetadata) -> dict[str, Any]:
        heads = max(1, values.count("attention.head_count"))
        width = values.count("embedding_length") / heads
        head_dim = values.count("attention.key_length", 256)
        return {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": width if values.num_layers == largest else head_dim,
            "rope_local_base_freq": values.number("rope.freq_base_swa", 10_000.0),
            **{name: values.value(name) for name in ("attn_logit_softcapping", "final_logit_softcapping")},
            **_layer_types(values),
        }

    return fields


def _qwen_experts(values: GgufMetadata) -> dict[str, Any]:
    dense = [layer for layer in range(values.num_layers) if not values.has(f"blk.{layer}.ffn_gate_inp")]
    return {"mlp_only_layers": dense, "qkv_bias": values.has_bias("blk.0.attn_q")}


def _phi3(values: GgufMetadata) -> dict[str, Any]:
    return {"sliding_window": values.count("attention.sliding_window") or None}


def _exaone4(values: GgufMetadata) -> dict[str, Any]:
    return {"sliding_window": values.value("attention.sliding_window"), **_layer_types(values)}


def _glm4_moe(values: GgufMetadata) -> dict[str, Any]:
    return {
        "use_qk_norm": values.has("blk.0.attn_q_norm"),
        "norm_topk_prob": values.value("expert_weights_norm") is not False,
        "num_nextn_predict_layers": values.count("nextn_predict_layers"),
    }


def _llama4(values: GgufMetadata) -> dict[str, Any]:
    """Beside the values of a file are those that llama.cpp has in its code."""
    return {
        "use_qk_norm": values.count("expert_count") != 128,
        "attention_chunk_size": values.count("attention.sliding_window", 8192) or None,
        "attn_temperature_tuning": True,
    }


def _minimax_m2(values: GgufMetadata) -> dict[str, Any]:
    width = values.count("attention.key_length", 128)
    return {"rotary_dim": values.count("rope.dimension_count", width), "partial_rotary_factor": None}


_SIGMOID = 2
"""Of `expert_gating_func`."""


def _deepseek2(values: GgufMetadata) -> dict[str, Any]:
    """DeepSeek-V2, V3 and their relatives; newer files have a single head of keys, and the sizes of heads elsewhere."""
    turned = values.count("rope.dimension_count", 64)
    key = values.count("attention.key_length_mla", values.count("attention.key_length"))
    groups = values.count("expert_group_count", 1) or 1
    is_v3 = values.value("expert_gating_func") == _SIGMOID
    fields: dict[str, Any] = {
        "q_lora_rank": values.value("attention.q_lora_rank"),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": key - turned,
        "v_head_dim": values.count("attention.value_length_mla", values.count("attention.value_length")),
        "routed_scaling_factor": values.number("expert_weights_scale", 1.0) or 1.0,
        "norm_topk_prob": values.value("expert_weights_norm") is True,
        "n_group": groups,
        "topk_group": values.count("expert_group_used_count", 1) or 1,
        "num_key_value_heads": values.value("attention.head_count"),
        "partial_rotary_factor": None,
    }
    if is_v3:
        return fields | {"architectures": ["DeepseekV3ForCausalLM"], "topk_method": "noaux_tc"}
    return fields | {"topk_method": "group_limited_greedy" if groups > 1 else "greedy"}


_LLAMA = GgufFamily("LlamaForCausalLM", is_interleaved=True)
_MIXTRAL = GgufFamily("MixtralForCausalLM", _LOCAL_EXPERTS, _MIXTRAL_NAMES, is_interleaved=True)
_OLMO3 = GgufFamily("Olmo3ForCausalLM", _WINDOW, _UPDATES_NORMED, _layer_types)
FAMILIES: dict[str, GgufFamily] = {
    "cohere2": GgufFamily(
        "Cohere2ForCausalLM",
        {"logit_scale": "logit_scale", "layer_norm_eps": "attention.layer_norm_epsilon", **_WINDOW},
        more=_layer_types,
    ),
    "deepseek2": GgufFamily(
        "DeepseekV2ForCausalLM",
        {"kv_lora_rank": "attention.kv_lora_rank", **_ROUTED_KEYS},
        {
            "attn_q_a": "self_attn.q_a_proj",
            "attn_q_a_norm": "self_attn.q_a_layernorm",
            "attn_q_b": "self_attn.q_b_proj",
            "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
            "attn_kv_a_norm": "self_attn.kv_a_layernorm",
            "attn_kv_b": "self_attn.kv_b_proj",
            "attn_k_b": "self_attn.k_b_proj",
            "attn_v_b": "self_attn.v_b_proj",
        },
        _deepseek2,
        has_head_dim=False,
    ),
    "ernie4_5": GgufFamily("Ernie4_5ForCausalLM", more=lambda values: {"use_bias": values.has_bias("blk.0.attn_q")}),
    "ernie4_5-moe": GgufFamily(
        "Ernie4_5_MoeForCausalLM",
        {
            "moe_num_experts": "expert_count",
            "moe_k": "expert_used_count",
            "moe_layer_interval": "interleave_moe_layer_step",
            "moe_layer_start_index": "leading_dense_block_count",
            "moe_num_shared_experts": "expert_shared_count",
            **_NARROW,
        },
        {"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
        lambda values: {"use_bias": values.has_bias("blk.0.attn_q")},
    ),
    "exaone4": GgufFamily("Exaone4ForCausalLM", {}, _UPDATES_NORMED, _exaone4),
    "gemma2": GgufFamily("Gemma2ForCausalLM", _WINDOW, _GEMMA_NAMES, _gemma(46), norm_offset=1.0),
    "gemma3": GgufFamily("Gemma3ForCausalLM", _WINDOW, _GEMMA_NAMES, _gemma(62), norm_offset=1.0),
    "glm4": GgufFamily(
        "Glm4ForCausalLM",
        {},
        {
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_up": "mlp.gate_up_proj",
        },
    ),
    "glm4moe": GgufFamily("Glm4MoeForCausalLM", _ROUTED_KEYS, _SECOND_NORM, _glm4_moe),
    "gpt-oss": GgufFamily(
        "GptOssForCausalLM",
        {**_LOCAL_EXPERTS, "intermediate_size": "expert_feed_forward_length", **_WINDOW},
        {**_SECOND_NORM, "ffn_gate_inp": "mlp.router"},
        _layer_types,
        weaves_gate_up=True,
    ),
    "granite": GgufFamily("GraniteForCausalLM", _GRANITE_KEYS, is_interleaved=True),
    "granitemoe": GgufFamily(
        "GraniteMoeForCausalLM",
        {**_GRANITE_KEYS, **_LOCAL_EXPERTS},
        {**_moved("block_sparse_moe"), "ffn_gate_inp": "block_sparse_moe.router.layer"},
        is_interleaved=True,
    ),
    "hunyuan-dense": GgufFamily("HunYuanDenseV1ForCausalLM", {}, _HUNYUAN_NORMS),
    "hunyuan-moe": GgufFamily(
        "HunYuanMoEV1ForCausalLM",
        {
            "num_experts": "expert_count",
            "moe_topk": "expert_used_count",
            "num_shared_expert": "expert_shared_count",
            **_NARROW,
        },
        {**_HUNYUAN_NORMS, **_shared("mlp.shared_mlp"), "ffn_gate_inp": "mlp.gate.wg"},
    ),
    "llama": _LLAMA,
    "llama4": GgufFamily(
        "Llama4ForCausalLM",
        {
            **_LOCAL_EXPERTS,
            "intermediate_size": "expert_feed_forward_length",
            "intermediate_size_mlp": "feed_forward_length",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
        {**_moved("feed_forward"), **_shared("feed_forward.shared_expert"), "ffn_gate_inp": "feed_forward.router"},
        _llama4,
    ),
    "minimax-m2": GgufFamily("MiniMaxM2ForCausalLM", _LOCAL_EXPERTS, _MIXTRAL_NAMES, _minimax_m2),
    "mistral3": replace(_LLAMA, architecture="Ministral3ForCausalLM"),
    "olmo2": replace(_OLMO3, architecture="Olmo2ForCausalLM"),
    "olmoe": GgufFamily("OlmoeForCausalLM", {"num_experts": "expert_count", **_CHOSEN}),
    "phi3": GgufFamily("Phi3ForCausalLM", {}, {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}, _phi3),
    "qwen2": GgufFamily("Qwen2ForCausalLM"),
    "qwen2moe": GgufFamily(
        "Qwen2MoeForCausalLM",
        {
            "num_experts": "expert_count",
            "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
            **_CHOSEN,
            **_NARROW,
        },
        {**_shared("mlp.shared_expert"), "ffn_gate_inp_shexp": "mlp.shared_expert_gate"},
        _qwen_experts,
    ),
    "qwen3": GgufFamily("Qwen3ForCausalLM"),
    "qwen3moe": GgufFamily(
        "Qwen3MoeForCausalLM",
        {"num_experts": "expert_count", **_CHOSEN, **_NARROW},
        more=lambda values: {**_qwen_experts(values), "norm_topk_prob": True},
    ),
    "seed_oss": GgufFamily(
        "SeedOssForCausalLM",
        {},
        _SECOND_NORM,
        lambda values: {"attention_out_bias": values.has_bias("blk.0.attn_output")},
    ),
    "smollm3": replace(_LLAMA, architecture="SmolLM3ForCausalLM"),
}
"""By `general.architecture`."""
_RECURRENT = ("falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next")


def find_family(file: GgufFile) -> tuple[GgufFamily, GgufMetadata]:
    """The file's architecture. Raises ModelLoadError, naming it, for one that is not read."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in FAMILIES:
        known = f"supported are {', '.join(FAMILIES)}"
        if name in _RECURRENT:
            known = "recurrent layers are not read from GGUF files: use the safetensors checkpoint of the model"
        raise unsupported(file, "general.architecture", name, known)
    values, family = GgufMetadata(file, name), FAMILIES[name]
    if name == "llama" and values.count("expert_count"):
        family = _MIXTRAL
    if name == "olmo2" and values.count("attention.sliding_window"):
        family = _OLMO3
    return family, values
