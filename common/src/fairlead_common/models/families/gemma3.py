"""Gemma 3 with its vision tower (arXiv 2503.19786)."""

from dataclasses import replace

from fairlead_common.models.families.dense import parse_gemma3
from fairlead_common.models.families.family import Family
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.model_config import ModelConfig
from fairlead_common.models.siglip_config import parse_siglip

TEXT_DEFAULTS = {
    "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "max_position_embeddings": 131_072,
}  # fmt: skip
"""Values of transformers' class, which files with a tower leave out of `text_config`."""


def parse_gemma3_seeing(fields: JsonFields) -> ModelConfig:
    text = fields.with_section("text_config", TEXT_DEFAULTS)
    config = parse_gemma3(text)
    vision = parse_siglip(fields, config.hidden_size)
    for name, token_id in (
        ("image_token_index", vision.image_token_id),
        ("boi_token_index", vision.begin_token_id),
        ("eoi_token_index", vision.end_token_id),
    ):
        if token_id >= config.vocab_size:
            raise fields.invalid(name, f"must be below vocab_size ({config.vocab_size})")
    return replace(config, vision=vision)


FAMILIES = (
    Family(
        "Gemma3ForConditionalGeneration",
        "gemma3",
        parse_gemma3_seeing,
        "Gemma 3 from 4B on: chats with [images]",
    ),
)
