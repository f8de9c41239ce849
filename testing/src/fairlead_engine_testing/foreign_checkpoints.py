"""Checkpoints with random weights of models that have no family here: written by transformers, as their makers do."""

import importlib
import math
from collections.abc import Mapping
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


_TOWER = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "depth": 1,
    "num_heads": 2, "image_size": 28, "patch_size": 14, "out_hidden_size": 64, "deepstack_visual_indexes": [0],
}  # fmt: skip
"""A vision tower; each kind takes the fields that it knows."""


def write_foreign_checkpoint(folder: Path, model_type: str, **changes: Any) -> Path:
    """Writes `config.json` and safetensors in float32; the same arguments give the same weights. Returns the folder."""
    transformers: Any = importlib.import_module("transformers")
    settings = transformers.AutoConfig.for_model(model_type, **{**TINY, **changes})
    return _write(transformers.AutoModelForCausalLM.from_config(settings), folder)


def write_seeing_checkpoint(
    folder: Path, model_type: str, text: Mapping[str, Any], tower: Mapping[str, Any] = {}
) -> Path:
    """The same for a model that also sees images: a decoder like `TINY` with fields of its own, and a tower."""
    transformers: Any = importlib.import_module("transformers")
    settings = transformers.AutoConfig.for_model(
        model_type, text_config={**TINY, **text}, vision_config={**_TOWER, **tower}, eos_token_id=1
    )
    return _write(transformers.AutoModelForImageTextToText.from_config(settings), folder)


def _write(network: Any, folder: Path) -> Path:
    """The scale keeps activations near one, so that logits differ enough to tell a right model from a wrong one."""
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
