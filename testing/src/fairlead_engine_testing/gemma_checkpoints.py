"""A tiny Gemma 3 that sees images, with random weights as transformers writes it, with a tokenizer, a chat template and
a processor."""

import json
import math
from pathlib import Path
from typing import Any

import torch

from fairlead_engine_testing.byte_level import BYTES, byte_level

SPECIAL = ["<eos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"]
VOCAB_SIZE = len(BYTES) + len(SPECIAL)
END, _, STOP, BEGIN_IMAGE, END_IMAGE, SOFT = range(len(BYTES), VOCAB_SIZE)
"""Ids of what ends an answer and a turn, and of what stands before, behind and in place of an image."""
SIDE = 3
"""Rows and columns of an image's tokens."""
IMAGE_SIZE = 24
"""Pixels of an image's side."""
TEMPLATE = (
    "{% for message in messages %}<start_of_turn>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content | trim }}"
    "{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<start_of_image>{% elif part.type == 'text' %}{{ part.text | trim }}{% endif %}"
    "{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
PROCESSOR = {
    "image_processor_type": "Gemma3ImageProcessor", "size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE}, "resample": 2,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "rescale_factor": 1 / 255, "do_convert_rgb": None,
    "do_pan_and_scan": None, "do_resize": True, "do_rescale": True, "do_normalize": True, "image_seq_length": SIDE**2,
}  # fmt: skip
_TEXT = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 40, "intermediate_size": 72, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 24,
    "sliding_window": 6, "max_position_embeddings": 512, "bos_token_id": None, "eos_token_id": END,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
    },
}  # fmt: skip
_VISION = {
    "hidden_size": 24, "intermediate_size": 52, "num_hidden_layers": 2, "num_attention_heads": 3,
    "image_size": IMAGE_SIZE, "patch_size": 4, "vision_use_head": False,
}  # fmt: skip


def _drawn(name: str, normal: torch.Tensor) -> torch.Tensor:
    """Weights of a size with which layers change what they get, and images what is answered."""
    if normal.dim() == 1:  # weights of the decoder's normalisations are stored less one
        is_whole = name.endswith("weight") and ("vision_tower" in name or "post_" in name)
        return 0.2 * normal + is_whole
    if "position_embedding" in name:
        return 0.3 * normal
    scale = 4.0 if "patch_embedding" in name else 1.0
    return normal * scale / math.sqrt(math.prod(normal.shape[1:]))  # the model multiplies embeddings of tokens by it


def write_seeing_gemma(folder: Path, **text: Any) -> Path:
    """All files that a server needs; `text`: changes of the decoder's configuration. A window is shorter than an
    image."""
    import transformers

    config = transformers.Gemma3Config(
        text_config={**_TEXT, **text}, vision_config=_VISION, mm_tokens_per_image=SIDE**2, boi_token_index=BEGIN_IMAGE,
        eoi_token_index=END_IMAGE, image_token_index=SOFT,
    )  # fmt: skip
    model = transformers.Gemma3ForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(_drawn(name, torch.randn(tensor.shape, generator=generator)))
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    write_gemma_tokenizer(folder)
    return folder


def write_gemma_tokenizer(folder: Path) -> None:
    """A token for each byte, and the special ones."""
    backend = byte_level()
    backend.add_special_tokens(SPECIAL)
    backend.save(str(folder / "tokenizer.json"))
    names = {"boi_token": SPECIAL[3], "eoi_token": SPECIAL[4], "image_token": SPECIAL[5]}
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[0], "extra_special_tokens": names}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
