"""What a GGUF file says of its model, as `config.json` would say it."""

from typing import Any

import torch

from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.gguf.gguf_blocks import FLOATS
from fairlead_engine.model.rope import inverse_frequencies
from fairlead_protocol.models.gguf_file import GgufFile
from fairlead_protocol.models.rope_config import RopeConfig, RopeKind

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""By `general.architecture`."""
_FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
_ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
_EMBEDDING, _HEAD, _FREQUENCIES = "token_embd.weight", "output.weight", "rope_freqs.weight"
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Of Llama 3.1 and 3.2, whose files have the frequencies' factors instead."""


def config_fields(file: GgufFile) -> dict[str, Any]:
    """Raises ModelLoadError for what no layer here computes."""
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise _unsupported(file, "general.architecture", architecture, f"supported are {', '.join(ARCHITECTURES)}")
    if (count := file.metadata.get("split.count", 1)) != 1:
        raise _unsupported(file, "split.count", count, "merge its parts into one file")
    if _EMBEDDING not in file.tensors or len(file.tensors[_EMBEDDING].shape) != 2:
        file.refuse(f"has no tensor {_EMBEDDING} of two dimensions")
    fields = {
        name: value
        for name, key in _FIELDS.items()
        if (value := file.metadata.get(f"{architecture}.{key}")) is not None
    }
    biases = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
    fields |= {name: tensor in file.tensors for name, tensor in biases.items()}
    ends = [value for key in _ENDS if (value := file.metadata.get(key)) is not None]
    return fields | {
        "architectures": [ARCHITECTURES[architecture]],
        "vocab_size": file.tensors[_EMBEDDING].shape[0],
        "tie_word_embeddings": _HEAD not in file.tensors,
        "dtype": _dtype(file),
        "eos_token_id": list(dict.fromkeys(ends)),
        "rope_scaling": _scaling(file, architecture, fields),
        "quantization_config": {"quant_method": "gguf"},
    }


def _dtype(file: GgufFile) -> str:
    """What others than quantised weights are: half precision, unless all are float32."""
    kinds = {FLOATS.get(tensor.kind) for tensor in file.tensors.values()}
    if torch.bfloat16 in kinds:
        return "bfloat16"
    return "float32" if kinds == {torch.float32} else "float16"


def _scaling(file: GgufFile, architecture: str, fields: dict[str, Any]) -> dict[str, Any] | None:
    prefix = f"{architecture}.rope.scaling"
    kind = file.metadata.get(f"{prefix}.type", "none")
    if _FREQUENCIES in file.tensors:
        return _llama3_scaling(file, fields)
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise _unsupported(file, f"{prefix}.type", kind, "supported are linear and yarn")
    found = {"rope_type": kind, "factor": file.metadata.get(f"{prefix}.factor")}
    original = file.metadata.get(f"{prefix}.original_context_length")
    return found | ({} if original is None else {"original_max_position_embeddings": original})


def _llama3_scaling(file: GgufFile, fields: dict[str, Any]) -> dict[str, Any]:
    tensor = file.tensors[_FREQUENCIES]
    if tensor.kind not in FLOATS or len(tensor.shape) != 1 or tensor.shape[0] > 2**16:
        file.refuse(f"has a tensor {_FREQUENCIES} that is no list of floats")
    dtype = FLOATS[tensor.kind]
    raw = bytearray(file.bytes_at(tensor.offset, tensor.shape[0] * dtype.itemsize, _FREQUENCIES))
    factors = torch.frombuffer(raw, dtype=dtype).float()
    theta, factor = float(fields.get("rope_theta") or 10000.0), float(factors.max())
    head_dim = 2 * len(factors)
    if factor > 1.0 and theta > 1.0:
        rope = RopeConfig(
            theta=theta,
            kind=RopeKind.LLAMA3,
            factor=factor,
            low_freq_factor=_LLAMA3["low_freq_factor"],
            high_freq_factor=_LLAMA3["high_freq_factor"],
            original_max_position_embeddings=int(_LLAMA3["original_max_position_embeddings"]),
        )
        plain = inverse_frequencies(RopeConfig(theta=theta), head_dim)
        if torch.allclose(plain / inverse_frequencies(rope, head_dim), factors, rtol=1e-3):
            return {"rope_type": "llama3", "factor": factor, **_LLAMA3}
    raise _unsupported(file, _FREQUENCIES, f"{factors[:3].tolist()}…", "only Llama 3.1's and 3.2's scaling is known")


def _unsupported(file: GgufFile, name: str, value: object, remedy: str) -> ModelLoadError:
    return ModelLoadError(
        ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
        f"{file.path.name}: {name} is {value!r}, which this engine lacks; {remedy}",
    )
