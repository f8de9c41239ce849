"""Checkpoints with random weights of models that have no family here: written by transformers, as their makers do."""

import importlib
import math
from pathlib import Path
from typing import Any

import torch

TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
"""As most configurations spell it; each takes what it knows."""


def write_foreign_checkpoint(folder: Path, model_type: str, **changes: Any) -> Path:
    """Writes `config.json` and safetensors in float32. The scale keeps activations near one, so that logits differ
    enough to tell a right model from a wrong one; the same arguments give the same weights. Returns the folder."""
    transformers: Any = importlib.import_module("transformers")
    settings = transformers.AutoConfig.for_model(model_type, **{**TINY, **changes})
    network = transformers.AutoModelForCausalLM.from_config(settings)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(0.1 * values + (0.0 if name.endswith("bias") else 1.0))
            else:
                parameter.copy_(values / math.sqrt(parameter.shape[-1]))
    network.save_pretrained(folder)
    return folder
