"""A tiny Qwen2.5-VL with random weights as transformers writes it, with a tokenizer, a chat template and a processor.

Weights need transformers, which the packages do not: it is the reference for what such a model's files look like.
"""

import json
import math
from pathlib import Path
from typing import Any

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
_TEXT = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [2, 3, 3]},
    "bos_token_id": None, "eos_token_id": END,
}  # fmt: skip
_VISION = {
    "depth": 3, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "out_hidden_size": 32,
    "fullatt_block_indexes": [1], "patch_size": 4, "window_size": 32,
}  # fmt: skip


def write_vision_model(folder: Path, **text: Any) -> Path:
    """All files that a server needs; `text`: changes of the decoder's configuration."""
    import transformers

    config = transformers.Qwen2_5_VLConfig(
        text_config={**_TEXT, **text}, vision_config=_VISION, image_token_id=PAD, video_token_id=PAD + 1,
        vision_start_token_id=START, vision_end_token_id=STOP,
    )  # fmt: skip
    model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            drawn = torch.randn(tensor.shape, generator=generator)
            if tensor.dim() == 1:
                drawn = 0.2 * drawn + (not name.endswith("bias"))
            elif "embed_tokens" not in name:
                drawn /= math.sqrt(math.prod(tensor.shape[1:]))
            tensor.copy_(drawn)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
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
