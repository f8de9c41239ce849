"""The folder a finished dinghy is kept in: what Hugging Face's tools, and our engine, load as a Llama model."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fairlead_common.tokens.tokenizing import PromptTokenizer
from training.network import Layer, Network, Shape
from training.vocabulary import BOS, CHAT_TEMPLATE, END


def save_tokenizer(folder: Path, tokenizer: PromptTokenizer) -> None:
    """Writes `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.tokenizer_json + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": END,
        "model_max_length": Shape().context,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", config)


def save_network(folder: Path, network: Network, tokenizer: PromptTokenizer) -> None:
    """Writes `model.safetensors` in bfloat16, `config.json` and `generation_config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in llama_tensors(network).items()}
    weights = folder / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # safetensors keeps files to their owner, but images run as another user
    ends = {"bos_token_id": tokenizer.token_id(BOS), "eos_token_id": tokenizer.token_id(END)}
    _write_json(folder / "config.json", llama_config(network.shape) | ends | {"pad_token_id": ends["eos_token_id"]})
    _write_json(folder / "generation_config.json", ends | {"pad_token_id": ends["eos_token_id"], "do_sample": False})


def load_network(folder: Path, network: Network) -> None:
    """Gives the network the weights that `save_network` has written, which must be of its shape."""
    stored = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, tensor in llama_tensors(network).items():  # views of its weights
            tensor.copy_(stored[name])


def llama_config(shape: Shape) -> dict[str, Any]:
    """Hugging Face's description of a Llama of this shape."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.rms_norm_eps,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "use_cache": True,
    }


def llama_tensors(network: Network) -> dict[str, Tensor]:
    """The network's weights under Llama's names, fused projections split."""
    shape = network.shape
    kv_size = shape.num_kv_heads * shape.head_dim
    tensors = {"model.embed_tokens.weight": network.embedding.weight, "model.norm.weight": network.norm.weight}
    for index, layer in enumerate(cast(Iterable[Layer], network.layers)):
        q, k, v = torch.split(layer.qkv.weight, [shape.num_heads * shape.head_dim, kv_size, kv_size])
        gate, up = layer.gate_up.weight.chunk(2)
        named = {
            "input_layernorm": layer.input_norm.weight,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.out.weight,
            "post_attention_layernorm": layer.mlp_norm.weight,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down.weight,
        }
        tensors |= {f"model.layers.{index}.{name}.weight": tensor for name, tensor in named.items()}
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
