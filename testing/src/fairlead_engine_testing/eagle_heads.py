"""EAGLE-3 heads with random weights, stored as published ones are."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, INNER = 4, 2, 16, 96


def eagle_fields(hidden_size: int, vocab_size: int, num_words: int, **changes: Any) -> dict[str, Any]:
    """The `config.json` of a head with so many words, for a model of that size, with changes."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": hidden_size, "intermediate_size": INNER, "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS, "head_dim": HEAD_DIM, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048, "vocab_size": vocab_size, "draft_vocab_size": num_words,
        "rope_theta": 10_000.0, "torch_dtype": "float32", **changes,
    }  # fmt: skip


def eagle_tensors(fields: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Its tensors; its words are spread over the model's."""
    generator = torch.Generator().manual_seed(seed)
    hidden, num_words, vocab_size = (fields[name] for name in ("hidden_size", "draft_vocab_size", "vocab_size"))
    layer, queries, keys = "midlayer", NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
    norms = ("norm", *(f"{layer}.{name}" for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")))
    linears = {
        "fc": (hidden, 3 * hidden), "lm_head": (num_words, hidden),
        f"{layer}.self_attn.q_proj": (queries, 2 * hidden), f"{layer}.self_attn.k_proj": (keys, 2 * hidden),
        f"{layer}.self_attn.v_proj": (keys, 2 * hidden), f"{layer}.self_attn.o_proj": (hidden, queries),
        f"{layer}.mlp.gate_proj": (INNER, hidden), f"{layer}.mlp.up_proj": (INNER, hidden),
        f"{layer}.mlp.down_proj": (hidden, INNER),
    }  # fmt: skip
    tensors = {f"{name}.weight": 1 + 0.2 * torch.randn(hidden, generator=generator) for name in norms}
    for name, shape in linears.items():
        tensors[f"{name}.weight"] = torch.randn(shape, generator=generator) / shape[-1] ** 0.5
    words = torch.arange(num_words) * vocab_size // num_words
    is_own = torch.zeros(vocab_size, dtype=torch.bool)
    is_own[words] = True
    return {**tensors, "d2t": words - torch.arange(num_words), "t2d": is_own}


def write_eagle_head(
    folder: Path, fields: dict[str, Any], tensors: dict[str, Tensor] | None = None, *, form: str = "safetensors"
) -> Path:
    """The folder, made. `form`: safetensors, or bin for torch's own; random tensors where none are given."""
    tensors = eagle_tensors(fields) if tensors is None else tensors
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    if form == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder
