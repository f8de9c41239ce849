"""Tiny models that see, with random weights as transformers writes them, a tokenizer, a chat template and a processor.

Weights need transformers, which the packages do not: it is the reference for what such a model's files look like.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from fairlead_engine_testing.byte_level import BYTES, byte_level

SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>",
]  # fmt: skip
VOCAB_SIZE = len(BYTES) + len(SPECIAL)
END, START, STOP, PAD = (len(BYTES) + SPECIAL.index(name) for name in (SPECIAL[2], *SPECIAL[3:6]))
"""Ids of what ends an answer, and of what stands before, behind and in place of an image."""
FACTOR = 8
"""Pixels of a side of what becomes a token."""
MOST_TOKENS = 64
"""Of an image."""
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' or 'image' in part or 'image_url' in part %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2,
    "min_pixels": 4 * FACTOR**2, "max_pixels": MOST_TOKENS * FACTOR**2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
}  # fmt: skip
_TURNED = {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [2, 3, 3]}
_TEXT = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
    "rope_parameters": _TURNED, "bos_token_id": None, "eos_token_id": END,
}  # fmt: skip
_VISION = {
    "depth": 3, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4,
}  # fmt: skip
_MIXED = {**_TURNED, "mrope_section": [3, 3, 2], "mrope_interleaved": True}
_DEEP = {
    "num_hidden_layers": 3, "head_dim": 16, "rope_parameters": {**_MIXED, "mrope_section": [4, 2, 2]},
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_RECURRENT = {
    "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"], "head_dim": 32,
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 12, "linear_value_head_dim": 16,
    "rope_parameters": {**_MIXED, "partial_rotary_factor": 0.5},
}  # fmt: skip
_STRETCHED = {**_VISION, "num_position_embeddings": 49}
_EDGES = {
    **{name: value for name, value in PROCESSOR.items() if not name.endswith("_pixels")},
    "size": {"shortest_edge": PROCESSOR["min_pixels"], "longest_edge": PROCESSOR["max_pixels"]},
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip


class _Kind(NamedTuple):
    classes: str
    """How the names of transformers' classes begin."""
    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    processor: Mapping[str, Any]


VISION_KINDS = {
    "qwen2_5_vl": _Kind("Qwen2_5_VL", {}, {**_VISION, "fullatt_block_indexes": [1], "window_size": 32}, PROCESSOR),
    "qwen3_vl": _Kind("Qwen3VL", _DEEP, {**_STRETCHED, "deepstack_visual_indexes": [0, 2]}, _EDGES),
    "qwen3_vl_moe": _Kind(
        "Qwen3VLMoe", {**_DEEP, **_EXPERTS}, {**_STRETCHED, "deepstack_visual_indexes": [1]}, _EDGES
    ),
    "qwen3_5_vl": _Kind("Qwen3_5", _RECURRENT, _STRETCHED, _EDGES),
    "qwen3_5_vl_moe": _Kind(
        "Qwen3_5Moe", {**_RECURRENT, **_EXPERTS, "shared_expert_intermediate_size": 32}, _STRETCHED, _EDGES
    ),
}  # fmt: skip


def seeing_class(kind: str) -> Any:
    """The model in transformers."""
    import transformers

    return getattr(transformers, f"{VISION_KINDS[kind].classes}ForConditionalGeneration")


def write_vision_model(folder: Path, kind: str = "qwen2_5_vl", **text: Any) -> Path:
    """All files that a server needs; `kind`: of `VISION_KINDS`; `text`: changes of the decoder's configuration."""
    import transformers

    classes, own, vision, processor = VISION_KINDS[kind]
    config = getattr(transformers, f"{classes}Config")(
        text_config={**_TEXT, **own, **text}, vision_config=vision, image_token_id=PAD, video_token_id=PAD + 1,
        vision_start_token_id=START, vision_end_token_id=STOP,
    )  # fmt: skip
    model = seeing_class(kind)(config)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            drawn = torch.randn(tensor.shape, generator=generator)
            if tensor.dim() == 1:
                drawn = 0.2 * drawn + (not name.endswith("bias"))
            elif "embed_tokens" not in name:
                inputs = tensor.shape[2:] if ".experts." in name else tensor.shape[1:]
                drawn /= math.sqrt(math.prod(inputs))
            tensor.copy_(drawn)
        model.lm_head.weight[PAD : PAD + 2] = 0.0  # no answer has them: transformers would count them as images
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    write_vision_tokenizer(folder)
    return folder


def write_vision_tokenizer(folder: Path) -> None:
    """A token for each byte, and the special ones."""
    backend = byte_level()
    backend.add_special_tokens(SPECIAL)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[2]}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """An image of random colours."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)
