"""Architectures of GGUF files: Hugging Face's names of fields and tensors, by the public conventions of llama.cpp.

Names and keys are those of the `gguf` package. Files differ from checkpoints in a few ways beside names: experts of a
layer lie in one tensor, Gemma's normalisations have 1 added, and heads of Llama's relatives have the two numbers of a
rotation side by side. Of recurrent layers they have -exp(A_log), kernels without the dimension of 1, and Qwen3.5's
value heads by turns of key heads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fairlead_common.models.families.registry import ARCHITECTURES
from fairlead_common.models.gguf_file import GgufFile
from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.gguf_blocks import FLOATS

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

    def of_layers(self, key: str) -> list[int]:
        """Whole numbers for each served layer; a file has a list, or one number for all layers."""
        value, num = self.value(key), self.num_layers
        if isinstance(value, list) and len(value) >= num and all(type(each) is int for each in value):
            return [each for each in value[:num] if 0 <= each <= _MOST]
        return [self.count(key)] * num

    def numbers(self, key: str) -> torch.Tensor:
        """A number for each served layer, float32; the key is without the architecture's name."""
        value, num = self.file.metadata.get(key), self.num_layers
        known = [each for each in value if type(each) is float] if isinstance(value, list) else []
        if len(known) < num or not torch.tensor(known).isfinite().all():
            self.file.refuse(f"has no list of {num} numbers as {key}")
        return torch.tensor(known[:num])

    def largest(self, key: str) -> int:
        return max(self.of_layers(key), default=0)

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

    def layers_with(self, tensor: str) -> list[int]:
        """The served layers with a weight of this name."""
        return [layer for layer in range(self.num_layers) if self.has(f"blk.{layer}.{tensor}")]

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


def listed(file: GgufFile, name: str) -> torch.Tensor:
    """A tensor of the configuration: float32 [numbers]."""
    tensor = file.tensors.get(name)
    if tensor is None or tensor.kind not in FLOATS or len(tensor.shape) != 1 or tensor.shape[0] > 2**16:
        file.refuse(f"has a tensor {name} that is no list of floats")
    dtype = FLOATS[tensor.kind]
    raw = bytearray(file.bytes_at(tensor.offset, tensor.shape[0] * dtype.itemsize, name))
    return torch.frombuffer(raw, dtype=dtype).float()


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
    """Names of tensors in the file and in checkpoints, where they differ from `WHOLE_NAMES` and `LAYER_NAMES`."""
    more: Fields = _nothing
    is_interleaved: bool = False
    """Whether rows of queries and keys have the two numbers of a rotation side by side, unlike the checkpoint's."""
    norm_offset: float = 0.0
    """Added to the weights of normalisations."""
    has_value_turns: bool = False
    """Whether value heads of recurrent layers lie by turns of key heads; else heads with one key are neighbours."""
    weaves_gate_up: bool = False
    """Whether rows of an expert's gate and up projections lie by turns in one tensor of the checkpoint."""
    has_head_dim: bool = True
    """Whether `attention.key_length` is the size of a head."""
    numbers: Mapping[str, str] = field(default_factory=dict)
    """Tensors of one number in each layer, and the keys of lists with a number for each layer."""


FREQUENCIES = "rope_freqs.weight"
"""Divisors of rotary frequencies."""
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
    "ffn_gate_up_exps": "mlp.experts.{}.gate_up_proj",
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


_LATENT_NAMES = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
}
_INDEXED_NAMES = {
    **_LATENT_NAMES,
    "indexer.attn_q_b": "self_attn.indexer.wq_b",
    "indexer.attn_k": "self_attn.indexer.wk",
    "indexer.k_norm": "self_attn.indexer.k_norm",
    "indexer.proj": "self_attn.indexer.weights_proj",
}


def _recurrent(place: str) -> dict[str, str]:
    """Names of a recurrent layer's tensors in a part of a decoder layer."""
    own = {"a": "A_log", "d": "D", "dt.bias": "dt_bias", "conv1d": "conv1d", "norm": "norm", "in": "in_proj"}
    return {f"ssm_{name}": f"{place}.{each}" for name, each in (own | {"out": "out_proj"}).items()}


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
_GEMMA4_NAMES = {
    **_GEMMA_NAMES,
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    **{f"ffn_{kind}_exps": f"experts.{{}}.{kind}_proj" for kind in ("gate", "up", "gate_up", "down")},
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "layer_output_scale.weight": "layer_scalar",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_SECOND_NORM = {"post_attention_norm": "post_attention_layernorm"}
_DELTA_NAMES = {
    **_recurrent("linear_attn"),
    **_SECOND_NORM,
    **_shared("mlp.shared_expert"),
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
}
_HYBRID_NAMES = {
    **_recurrent("mamba"),
    **_moved("feed_forward"),
    **dict.fromkeys(("ffn_norm", "ffn_norm.weight"), "pre_ff_layernorm.weight"),
    "output_norm": "model.final_layernorm",
}
_LFM2_NAMES = {
    **_moved("feed_forward"),
    **{f"ffn_{kind}": f"feed_forward.w{number}" for kind, number in (("gate", 1), ("down", 2), ("up", 3))},
    **{f"ffn_{kind}_exps": f"feed_forward.experts.{{}}.w{number}" for kind, number in
       (("gate", 1), ("down", 2), ("up", 3))},
    **{f"shortconv.{name}": f"conv.{name}" for name in ("conv", "in_proj", "out_proj")},
    **{f"attn_{name}_norm": f"self_attn.{name}_layernorm" for name in "qk"},
    "exp_probs_b.bias": "feed_forward.expert_bias",
    "attn_output": "self_attn.out_proj",
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    "token_embd_norm": "model.embedding_norm",
}  # fmt: skip
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
_DELTA_KEYS = {
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "linear_key_head_dim": "ssm.state_size",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
}
_QWEN_EXPERTS = {
    "num_experts": "expert_count",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    **_CHOSEN,
    **_NARROW,
}
_MAMBA_KEYS = {
    "mamba_n_heads": "ssm.time_step_rank",
    "mamba_n_groups": "ssm.group_count",
    "mamba_d_state": "ssm.state_size",
    "mamba_d_conv": "ssm.conv_kernel",
}
_ROUTED_KEYS = {
    "n_routed_experts": "expert_count",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "routed_scaling_factor": "expert_weights_scale",
    **_CHOSEN,
    **_NARROW,
}
_LATENT_KEYS = {"kv_lora_rank": "attention.kv_lora_rank", **_ROUTED_KEYS}
_INDEXED_KEYS = {
    "index_n_heads": "attention.indexer.head_count",
    "index_head_dim": "attention.indexer.key_length",
    "index_topk": "attention.indexer.top_k",
    **_LATENT_KEYS,
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


_TURNED = 2.0
"""Larger than the divisor of a turned pair's frequency; the divisor of an unturned pair is immense."""


def _gemma4(values: GgufMetadata) -> dict[str, Any]:
    kinds = _layer_types(values).get("layer_types", [])
    heads, inner = values.of_layers("attention.head_count_kv"), values.of_layers("feed_forward_length")
    last = max(0, values.num_layers - 1 - values.count("attention.shared_kv_layers"))
    own = [layer for layer, kind in enumerate(kinds) if kind == "full_attention" and layer <= last]
    words = values.file.tensors.get("per_layer_token_embd.weight")
    turned = listed(values.file, FREQUENCIES) < _TURNED if FREQUENCIES in values.file.tensors else torch.ones(1)
    whole = {"rope_type": "proportional", "rope_theta": values.number("rope.freq_base", 1e6)}
    return {
        "layer_types": kinds,
        "rope_parameters": {
            "full_attention": whole | {"partial_rotary_factor": float(turned.float().mean())},
            "sliding_attention": {"rope_type": "default", "rope_theta": values.number("rope.freq_base_swa", 1e4)},
        },
        "num_key_value_heads": next((heads[each] for each, kind in enumerate(kinds) if kind != kinds[-1]), 0),
        "num_global_key_value_heads": heads[-1] if heads else 0,
        "attention_k_eq_v": any(not values.has(f"blk.{layer}.attn_v") for layer in own),
        "num_kv_shared_layers": values.count("attention.shared_kv_layers"),
        "intermediate_size": min(inner, default=0),
        "use_double_wide_mlp": len({*inner}) > 1,
        "hidden_size_per_layer_input": values.count("embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": 0 if words is None else words.shape[0],
        "enable_moe_block": values.count("expert_count") > 0,
    }


def _phimoe(values: GgufMetadata) -> dict[str, Any]:
    return {**_phi3(values), "lm_head_bias": values.has_bias("output")}


def _cohere2_moe(values: GgufMetadata) -> dict[str, Any]:
    dense = values.file.tensors.get("blk.0.ffn_up.weight")
    return {
        **_layer_types(values),
        "prefix_dense_intermediate_size": None if dense is None else dense.shape[0],
        "norm_topk_prob": values.value("expert_weights_norm") is True,
        "expert_selection_fn": "softmax" if values.value("expert_gating_func") == _SOFTMAX else "sigmoid",
    }


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
    """The values of a file, and the constants of llama.cpp's code."""
    return {
        "use_qk_norm": values.count("expert_count") != 128,
        "attention_chunk_size": values.count("attention.sliding_window", 8192) or None,
        "attn_temperature_tuning": True,
    }


def _minimax_m2(values: GgufMetadata) -> dict[str, Any]:
    width = values.count("attention.key_length", 128)
    return {"rotary_dim": values.count("rope.dimension_count", width), "partial_rotary_factor": None}


_SOFTMAX, _SIGMOID = 1, 2
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


def _indexed(architecture: str) -> GgufFamily:
    """Layers without an indexer take over the choice of the layer before."""

    def fields(values: GgufMetadata) -> dict[str, Any]:
        choosing = {*values.layers_with("indexer.attn_k")}
        kinds = ["full" if layer in choosing else "shared" for layer in range(values.num_layers)]
        own = {"architectures": [architecture], "topk_method": "noaux_tc", "indexer_types": kinds}
        return _deepseek2(values) | own

    return GgufFamily(architecture, _INDEXED_KEYS, _INDEXED_NAMES, fields, has_head_dim=False)


def _kinds(values: GgufMetadata) -> dict[str, Any]:
    """Kinds of layers follow from tensors. Some files have 0 heads of keys in recurrent layers."""
    recurrent = {*values.layers_with("ssm_out")}
    kinds = ["linear_attention" if each in recurrent else "full_attention" for each in range(values.num_layers)]
    return {"layer_types": kinds, "num_key_value_heads": values.largest("attention.head_count_kv")}


def _delta(values: GgufMetadata) -> dict[str, Any]:
    """Layers that guess are left aside."""
    size = values.count("ssm.inner_size") // max(1, values.count("ssm.time_step_rank"))
    guessing = dict.fromkeys(("num_nextn_predict_layers", "mtp_num_hidden_layers"), 0)
    return {**_kinds(values), **guessing, "linear_value_head_dim": size}


def _mamba(values: GgufMetadata) -> dict[str, Any]:
    first = f"blk.{min(values.layers_with('ssm_out'), default=0)}"
    return {
        **_kinds(values),
        "mamba_expand": values.count("ssm.inner_size") // max(1, values.count("embedding_length")),
        "mamba_conv_bias": values.has_bias(f"{first}.ssm_conv1d"),
        "mamba_proj_bias": values.has_bias(f"{first}.ssm_in"),
    }


def _granite_hybrid(values: GgufMetadata) -> dict[str, Any]:
    shared = values.count("expert_shared_feed_forward_length") or values.count("feed_forward_length")
    return {
        **_mamba(values),
        "num_local_experts": values.count("expert_count"),
        "num_experts_per_tok": values.count("expert_used_count"),
        "shared_intermediate_size": shared,
    }


def _bamba(values: GgufMetadata) -> dict[str, Any]:
    head_dim = max(1, values.count("embedding_length") // max(1, values.count("attention.head_count")))
    return {
        **_mamba(values),
        "attn_layer_indices": values.layers_with("attn_q"),
        "partial_rotary_factor": values.count("rope.dimension_count", head_dim) / head_dim,
    }


def _falcon_h1(values: GgufMetadata) -> dict[str, Any]:
    """Weights have all factors in them."""
    return {
        **_mamba(values),
        "mamba_d_ssm": values.count("ssm.inner_size"),
        "mamba_rms_norm": values.has("blk.0.ssm_norm"),
        "mamba_norm_before_gate": False,
        "projectors_bias": values.has_bias("blk.0.ssm_out"),
    }


def _lfm2(values: GgufMetadata) -> dict[str, Any]:
    """Kinds of layers follow from tensors; the width of feed-forwards is as it is used."""
    convolving = {*values.layers_with("shortconv.out_proj")}
    first = f"blk.{min(convolving, default=0)}.shortconv"
    return {
        "layer_types": ["conv" if each in convolving else "full_attention" for each in range(values.num_layers)],
        "num_key_value_heads": values.largest("attention.head_count_kv"),
        "block_auto_adjust_ff_dim": False,
        "conv_bias": values.has_bias(f"{first}.in_proj"),
        "use_expert_bias": any(values.has_bias(f"blk.{each}.exp_probs_b") for each in range(values.num_layers)),
    }


def _nemotron_h(values: GgufMetadata) -> dict[str, Any]:
    letters = dict.fromkeys(range(values.num_layers), "-")
    for letter, tensor in (("M", "ssm_out"), ("*", "attn_q"), ("E", "ffn_gate_inp")):
        letters |= dict.fromkeys(values.layers_with(tensor), letter)
    biases = {"mlp_bias": "ffn_up", "use_bias": "ssm_in", "use_conv_bias": "ssm_conv1d"}
    layers = range(values.num_layers)
    return {
        **{name: any(values.has_bias(f"blk.{layer}.{each}") for layer in layers) for name, each in biases.items()},
        "hybrid_override_pattern": "".join(letters.values()),
        "num_key_value_heads": values.largest("attention.head_count_kv"),
        "intermediate_size": values.largest("feed_forward_length") or None,
        "mamba_head_dim": values.count("ssm.inner_size") // max(1, values.count("ssm.time_step_rank")),
        "norm_topk_prob": values.value("expert_weights_norm") is not False,
    }


_LLAMA = GgufFamily("LlamaForCausalLM", is_interleaved=True)
_MIXTRAL = GgufFamily("MixtralForCausalLM", _LOCAL_EXPERTS, _MIXTRAL_NAMES, is_interleaved=True)
_BAMBA = GgufFamily("BambaForCausalLM", _MAMBA_KEYS, _HYBRID_NAMES, _bamba, is_interleaved=True)
_DELTA = GgufFamily("Qwen3NextForCausalLM", {**_DELTA_KEYS, **_QWEN_EXPERTS}, _DELTA_NAMES, _delta, norm_offset=1.0)
_NEMOTRON_H = GgufFamily(
    "NemotronHForCausalLM",
    {
        "mamba_num_heads": "ssm.time_step_rank",
        "n_groups": "ssm.group_count",
        "ssm_state_size": "ssm.state_size",
        "conv_kernel": "ssm.conv_kernel",
        "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
        "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        "moe_latent_size": "moe_latent_size",
        "n_group": "expert_group_count",
        "topk_group": "expert_group_used_count",
        **_ROUTED_KEYS,
    },
    {
        **_recurrent("mixer"),
        **_moved("mixer"),
        **{name: own.replace("self_attn.", "mixer.", 1) for name, own in LAYER_NAMES.items() if "self_attn." in own},
        "attn_norm": "norm",
        "ffn_latent_down": "mixer.fc1_latent_proj",
        "ffn_latent_up": "mixer.fc2_latent_proj",
        "token_embd": "model.embeddings",
        "output_norm": "model.norm_f",
    },
    _nemotron_h,
    is_interleaved=True,
)
_LFM2 = GgufFamily(
    "Lfm2ForCausalLM",
    {
        "norm_eps": "attention.layer_norm_rms_epsilon",
        "conv_L_cache": "shortconv.l_cache",
        "num_experts": "expert_count",
        "num_dense_layers": "leading_dense_block_count",
        **_CHOSEN,
        **_NARROW,
    },
    _LFM2_NAMES,
    _lfm2,
)
_OLMO3 = GgufFamily("Olmo3ForCausalLM", _WINDOW, _UPDATES_NORMED, _layer_types)
FAMILIES: dict[str, GgufFamily] = {
    "apertus": GgufFamily(
        "ApertusForCausalLM",
        names={"attn_norm": "attention_layernorm", "ffn_norm": "feedforward_layernorm"},
        numbers={f"mlp.act_fn.{name}": f"xielu.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")},
    ),
    "arcee": replace(_LLAMA, architecture="ArceeForCausalLM"),
    "cohere2": GgufFamily(
        "Cohere2ForCausalLM",
        {"logit_scale": "logit_scale", "layer_norm_eps": "attention.layer_norm_epsilon", **_WINDOW},
        more=_layer_types,
    ),
    "cohere2moe": GgufFamily(
        "Cohere2MoeForCausalLM",
        {
            "logit_scale": "logit_scale",
            "layer_norm_eps": "attention.layer_norm_epsilon",
            "intermediate_size": "expert_feed_forward_length",
            "num_experts": "expert_count",
            "num_shared_experts": "expert_shared_count",
            "first_k_dense_replace": "leading_dense_block_count",
            **_CHOSEN,
            **_WINDOW,
        },
        more=_cohere2_moe,
    ),
    "deepseek2": GgufFamily(
        "DeepseekV2ForCausalLM",
        _LATENT_KEYS,
        _LATENT_NAMES,
        _deepseek2,
        has_head_dim=False,
    ),
    "deepseek32": _indexed("DeepseekV32ForCausalLM"),
    "dots1": GgufFamily(
        "Dots1ForCausalLM",
        {"n_group": "expert_group_count", "topk_group": "expert_group_used_count", **_ROUTED_KEYS},
        more=lambda values: {
            "norm_topk_prob": values.value("expert_weights_norm") is True,
            "sliding_window": None,
        },
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
    "exaone-moe": GgufFamily(
        "ExaoneMoeForCausalLM",
        {
            "num_experts": "expert_count",
            "num_shared_experts": "expert_shared_count",
            "first_k_dense_replace": "leading_dense_block_count",
            "routed_scaling_factor": "expert_weights_scale",
            "n_group": "expert_group_count",
            "topk_group": "expert_group_used_count",
            **_CHOSEN,
            **_NARROW,
        },
        {"exp_probs_b.bias": "mlp.e_score_correction_bias"},
        lambda values: {**_exaone4(values), "norm_topk_prob": values.value("expert_weights_norm") is not False},
    ),
    "falcon-h1": GgufFamily("FalconH1ForCausalLM", _MAMBA_KEYS, _HYBRID_NAMES, _falcon_h1),
    "gemma2": GgufFamily("Gemma2ForCausalLM", _WINDOW, _GEMMA_NAMES, _gemma(46), norm_offset=1.0),
    "gemma3": GgufFamily("Gemma3ForCausalLM", _WINDOW, _GEMMA_NAMES, _gemma(62), norm_offset=1.0),
    "gemma4": GgufFamily(
        "Gemma4ForCausalLM",
        {
            "head_dim": "attention.key_length_swa",
            "global_head_dim": "attention.key_length",
            "final_logit_softcapping": "final_logit_softcapping",
            "num_experts": "expert_count",
            "top_k_experts": "expert_used_count",
            **_NARROW,
            **_WINDOW,
        },
        _GEMMA4_NAMES,
        _gemma4,
        has_head_dim=False,
    ),
    "glm-dsa": _indexed("GlmMoeDsaForCausalLM"),
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
    "granitehybrid": GgufFamily(
        "GraniteMoeHybridForCausalLM",
        {**_GRANITE_KEYS, **_MAMBA_KEYS},
        {
            **_recurrent("mamba"),
            **_moved("block_sparse_moe"),
            "ffn_gate_inp": "block_sparse_moe.router.layer",
            **_shared("shared_mlp"),
            **{f"ffn_{kind}": f"shared_mlp.{kind}_proj" for kind in ("gate", "up")},
            **dict.fromkeys(("ffn_down", "ffn_down_shexp"), "shared_mlp.output_linear"),
        },
        _granite_hybrid,
        is_interleaved=True,
    ),
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
    "lfm2": _LFM2,
    "minimax-m2": GgufFamily("MiniMaxM2ForCausalLM", _LOCAL_EXPERTS, _MIXTRAL_NAMES, _minimax_m2),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H,
    "olmo2": replace(_OLMO3, architecture="Olmo2ForCausalLM"),
    "olmoe": GgufFamily("OlmoeForCausalLM", {"num_experts": "expert_count", **_CHOSEN}),
    "phi3": GgufFamily("Phi3ForCausalLM", {}, {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}, _phi3),
    "phimoe": GgufFamily("PhimoeForCausalLM", _LOCAL_EXPERTS, _MIXTRAL_NAMES, _phimoe),
    "qwen2": GgufFamily("Qwen2ForCausalLM"),
    "qwen2moe": GgufFamily(
        "Qwen2MoeForCausalLM",
        _QWEN_EXPERTS,
        {**_shared("mlp.shared_expert"), "ffn_gate_inp_shexp": "mlp.shared_expert_gate"},
        _qwen_experts,
    ),
    "qwen3": GgufFamily("Qwen3ForCausalLM"),
    "qwen35": replace(_DELTA, architecture="Qwen3_5ForCausalLM", has_value_turns=True),
    "qwen35moe": replace(_DELTA, architecture="Qwen3_5MoeForCausalLM", has_value_turns=True),
    "qwen3moe": GgufFamily(
        "Qwen3MoeForCausalLM",
        {"num_experts": "expert_count", **_CHOSEN, **_NARROW},
        more=lambda values: {**_qwen_experts(values), "norm_topk_prob": True},
    ),
    "qwen3next": _DELTA,
    "seed_oss": GgufFamily(
        "SeedOssForCausalLM",
        {},
        _SECOND_NORM,
        lambda values: {"attention_out_bias": values.has_bias("blk.0.attn_output")},
    ),
}
_BY_ARCHITECTURE = {family.architecture: family for family in FAMILIES.values()}
FAMILIES |= {
    each.gguf: replace(_BY_ARCHITECTURE[each.built_as], architecture=each.architecture)
    for each in ARCHITECTURES.values()
    if each.gguf and each.built_as
}
"""By `general.architecture`."""


def find_family(file: GgufFile) -> tuple[GgufFamily, GgufMetadata]:
    """The file's architecture. Raises ModelLoadError with the name of an architecture without support."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in FAMILIES:
        known = f"supported are {', '.join(FAMILIES)}: use the safetensors checkpoint of the model"
        raise unsupported(file, "general.architecture", name, known)
    values, family = GgufMetadata(file, name), FAMILIES[name]
    if name == "llama" and values.count("expert_count"):
        family = _MIXTRAL
    if name == "olmo2" and values.count("attention.sliding_window"):
        family = _OLMO3
    if name == "granitehybrid" and values.value("rope.scaling.finetuned"):
        family = _BAMBA
    return family, values
