"""The metadata of a GGUF file in the form of `config.json`."""

from typing import Any

import torch

from fairlead_common.models.gguf_file import GgufFile
from fairlead_common.models.rope_config import RopeConfig, RopeKind
from fairlead_engine.model.gguf_blocks import FLOATS
from fairlead_engine.model.gguf_families import FREQUENCIES, GgufMetadata, find_family, listed, unsupported
from fairlead_engine.model.rope import inverse_frequencies

_FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
_ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
FACTORS = (FREQUENCIES, _LONG, _SHORT)
"""Tensors that belong to the configuration."""
_LLAMA3: tuple[dict[str, Any], ...] = tuple(
    {"low_freq_factor": 1.0, "high_freq_factor": high, "original_max_position_embeddings": 8192} for high in (4.0, 1.0)
)
"""Of Llama 3.1 and 3.2, and of Llama 4, whose files have the frequencies' factors instead."""
_PHI_SCALE = 1.243163121016122
"""Of cosines and sines in all published Phis with experts, which no file says."""
_YARN = {
    "original_max_position_embeddings": "original_context_length",
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def config_fields(file: GgufFile) -> dict[str, Any]:
    """Raises ModelLoadError for what no layer here computes."""
    family, values = find_family(file)
    if _EMBEDDING not in file.tensors or len(file.tensors[_EMBEDDING].shape) != 2:
        file.refuse(f"has no tensor {_EMBEDDING} of two dimensions")
    fields: dict[str, Any] = {
        name: value for name, key in (_FIELDS | dict(family.keys)).items() if (value := values.value(key)) is not None
    }
    fields["num_hidden_layers"] = values.num_layers
    if family.has_head_dim:
        fields |= _head_fields(values)
    biases = {"attention_bias": "blk.0.attn_q", "mlp_bias": "blk.0.ffn_up"}
    fields |= {name: values.has_bias(tensor) for name, tensor in biases.items()}
    ends = [value for key in _ENDS if isinstance(value := file.metadata.get(key), int)]
    stored = {
        "architectures": [family.architecture],
        "vocab_size": file.tensors[_EMBEDDING].shape[0],
        "tie_word_embeddings": _HEAD not in file.tensors,
        "dtype": _dtype(file),
        "eos_token_id": list(dict.fromkeys(ends)),
        "rope_scaling": _scaling(values, family.architecture),
        "quantization_config": {"quant_method": "gguf"},
    }
    return fields | stored | family.more(values)


def _head_fields(values: GgufMetadata) -> dict[str, Any]:
    width, heads = values.count("embedding_length"), max(1, values.count("attention.head_count"))
    head_dim = values.count("attention.key_length", width // heads)
    turned = values.count("rope.dimension_count", head_dim)
    fields: dict[str, Any] = {"partial_rotary_factor": turned / head_dim} if head_dim and turned != head_dim else {}
    return fields | ({} if values.value("attention.key_length") is None else {"head_dim": head_dim})


def _dtype(file: GgufFile) -> str:
    """What others than quantised weights are: half precision, unless all are float32."""
    kinds = {FLOATS.get(tensor.kind) for tensor in file.tensors.values()}
    if torch.bfloat16 in kinds:
        return "bfloat16"
    return "float32" if kinds == {torch.float32} else "float16"


def _scaling(values: GgufMetadata, architecture: str) -> dict[str, Any] | None:
    file, kind = values.file, values.value("rope.scaling.type") or "none"
    if architecture.startswith("Gemma4"):
        return None
    if FREQUENCIES in file.tensors:
        return _llama3_scaling(values)
    if _LONG in file.tensors:
        return {
            "rope_type": "longrope",
            "long_factor": listed(file, _LONG).tolist(),
            "short_factor": listed(file, _SHORT).tolist(),
            "original_max_position_embeddings": values.value("rope.scaling.original_context_length"),
            **dict.fromkeys(("long_mscale", "short_mscale"), _PHI_SCALE),
        }
    if kind == "none":
        return {"rope_type": "default"} if architecture.startswith(("Apertus", "Ministral3")) else None
    if kind not in ("linear", "yarn"):
        raise unsupported(file, values.full("rope.scaling.type"), kind, "supported are linear and yarn")
    found: dict[str, Any] = {"rope_type": kind, "factor": values.value("rope.scaling.factor")}
    if kind == "linear":
        return found
    found |= {name: value for name, key in _YARN.items() if (value := values.value(f"rope.scaling.{key}")) is not None}
    return found | _of_scores(values, architecture)


def _of_scores(values: GgufMetadata, architecture: str) -> dict[str, Any]:
    """What families add to yarn."""
    if architecture == "GptOssForCausalLM":
        return {"truncate": False}
    weight = values.number("rope.scaling.yarn_log_multiplier", 0.0)
    if architecture.startswith("Deepseek"):  # whose files have a tenth, of both weights
        return {"mscale": 10 * weight, "mscale_all_dim": 10 * weight} if weight else {}
    if architecture.startswith("Ministral3"):
        growth = values.number("attention.temperature_scale", 0.0)
        fields = {"mscale": 1.0, "mscale_all_dim": weight} if weight else {}
        return fields | ({"llama_4_scaling_beta": growth} if growth else {})
    return {}


def _llama3_scaling(values: GgufMetadata) -> dict[str, Any]:
    factors = listed(values.file, FREQUENCIES)
    theta, factor = values.number("rope.freq_base", 10000.0), float(factors.max())
    head_dim = 2 * len(factors)
    if factor > 1.0 and theta > 1.0:
        plain = inverse_frequencies(RopeConfig(theta=theta), head_dim)
        for shape in _LLAMA3:
            rope = RopeConfig(theta=theta, kind=RopeKind.LLAMA3, factor=factor, **shape)
            if torch.allclose(plain / inverse_frequencies(rope, head_dim), factors, rtol=1e-3):
                return {"rope_type": "llama3", "factor": factor, **shape}
    told = f"{factors[:3].tolist()}…"
    raise unsupported(values.file, FREQUENCIES, told, "only Llama 3.1's, 3.2's and 4's scaling is known")
