"""GGUF files of checkpoints with random weights, written by llama.cpp's own package for them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file

from fairlead_engine.demo import resolve_model
from fairlead_engine_testing.quantized_checkpoints import WEIGHTS

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    folder: Path,
    target: Path,
    meant: Path,
    kinds: Mapping[str, Kind],
    *,
    tokenizer: Mapping[str, Any] | None = None,
    tensors_per_part: int = 0,
) -> Path:
    """The checkpoint as a file. `kinds`: by the ends of Hugging Face's names, how weights are stored; all others as
    float32. `meant` gets the floats that are left of them. `tokenizer`: what `tokenizer.` has, by the rest of its
    name. `tensors_per_part`: 0 = one file, else parts beside `target`, which is not written."""
    config = json.loads((folder / "config.json").read_text())
    model_type = config["model_type"]
    writer = gguf.GGUFWriter(target, model_type, split_max_tensors=tensors_per_part)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    tokens = [f"t{index}" for index in range(config["vocab_size"])]
    plain = {"ggml.model": "gpt2", "ggml.tokens": tokens}
    for key, value in (tokenizer or plain).items():
        stored = gguf.GGUFValueType.UINT32 if type(value) is int else gguf.GGUFValueType.get_type(value)
        writer.add_key_value(f"tokenizer.{key}", value, stored)
    left = {}
    for name, weight in load_file(folder / WEIGHTS).items():
        stem, _, suffix = name.rpartition(".")
        layer, _, rest = stem.removeprefix("model.layers.").partition(".")
        told = f"blk.{layer}.{_NAMES[rest]}" if stem.startswith("model.layers.") else _NAMES[stem]
        kind = next((kind for end, kind in kinds.items() if name.endswith(end)), Kind.F32)
        packed = _packed(weight.float().numpy(), kind)
        left[name] = torch.from_numpy(np.array(gguf.quants.dequantize(packed, kind)))
        if model_type == "llama" and rest in ("self_attn.q_proj", "self_attn.k_proj"):
            packed = packed.reshape(-1, 2, head_dim // 2, *packed.shape[1:]).swapaxes(1, 2).reshape(packed.shape)
        writer.add_tensor(f"{told}.{suffix}", np.ascontiguousarray(packed), raw_dtype=kind)
    finish(writer)
    write_meant(meant, config, left)
    return target


def finish(writer: gguf.GGUFWriter) -> None:
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()


def write_meant(folder: Path, config: Mapping[str, Any], left: Mapping[str, torch.Tensor]) -> None:
    """The checkpoint of the floats that are left of a file's weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float32", "torch_dtype": "float32"}))
    save_file(dict(left), folder / WEIGHTS, metadata={"format": "pt"})


def _packed(weight: np.ndarray, kind: Kind) -> np.ndarray:
    """A weight's blocks; of types that only llama.cpp itself writes, random ones of the weight's shape and spread."""
    try:
        return gguf.quants.quantize(weight, kind)
    except NotImplementedError:
        shape = gguf.quant_shape_to_byte_shape(weight.shape, kind)
        raw = np.random.default_rng(weight.size).integers(0, 256, shape, dtype=np.uint8)
        blocks = raw.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
        set_scales(blocks, kind, np.ones(len(blocks)))
        set_scales(blocks, kind, np.full(len(blocks), weight.std() / gguf.quants.dequantize(raw, kind).std()))
        return raw


_SCALES_AT = {
    Kind.Q2_K: (80, 82), Kind.Q3_K: (108,), Kind.Q6_K: (208,), Kind.Q4_1: (0, 2), Kind.Q5_1: (0, 2), Kind.Q4_K: (0, 2),
    Kind.Q5_K: (0, 2), Kind.TQ1_0: (52,), Kind.TQ2_0: (64,),
}  # fmt: skip
"""Bytes of the float16 scales and offsets of a block where they are not the first two."""


def set_scales(blocks: np.ndarray, kind: Kind, scales: np.ndarray) -> None:
    """Gives blocks, uint8 [blocks, bytes], these scales [blocks] and equal offsets."""
    halves = scales.astype(np.float16)
    if kind is Kind.IQ1_M:  # four bits in each of the last four numbers of 16 bits
        bits = halves.view(np.uint16)[:, None] >> np.array([0, 4, 8, 12], np.uint16)
        blocks[:, 49:56:2] = blocks[:, 49:56:2] & 15 | (bits << 4).astype(np.uint8)
        return
    for at in _SCALES_AT.get(kind, (0,)):
        blocks[:, at : at + 2] = halves[:, None].view(np.uint8)


def write_metadata(
    path: Path, tokenizer: Mapping[str, Any], *, chat_template: str | list[dict[str, str]] | None = None
) -> Path:
    """A file that is a tokenizer, and no model. `chat_template`: a text, or several with names."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in tokenizer.items():
        writer.add_key_value(f"tokenizer.ggml.{name}", value, gguf.GGUFValueType.get_type(value))
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    finish(writer)
    return path


def write_dinghy(folder: Path) -> Path:
    """The dinghy as one file, whose tokenizer cuts text a little otherwise than its own."""
    dinghy = resolve_model("demo://dinghy")
    vocabulary = dinghy_vocabulary()
    added = json.loads((dinghy / "tokenizer.json").read_text())["added_tokens"]
    behind = [each["content"] for each in added if each["id"] >= len(vocabulary["tokens"])]
    vocabulary["tokens"] += behind
    vocabulary["token_type"] += [4] * len(behind)
    tokenizer = {f"ggml.{name}": value for name, value in vocabulary.items()}
    tokenizer["chat_template"] = (dinghy / "chat_template.jinja").read_text()
    return write_gguf(
        dinghy, folder / "dinghy.gguf", folder / "meant", {"_proj.weight": Kind.BF16}, tokenizer=tokenizer
    )


def dinghy_vocabulary() -> dict[str, Any]:
    """The dinghy's vocabulary and merges, as `tokenizer.ggml` has them."""
    model = json.loads((resolve_model("demo://dinghy") / "tokenizer.json").read_text())
    vocab = model["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.get)
    special = {entry["content"] for entry in model["added_tokens"]}
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model["model"]["merges"]]
    kinds = [3 if token in special else 1 for token in tokens]
    return {
        "model": "gpt2", "pre": "qwen2", "tokens": tokens, "merges": merges, "token_type": kinds, "bos_token_id": 0,
        "eos_token_id": 5,
    }  # fmt: skip
