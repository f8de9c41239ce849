"""Qwen2.5-VL (arXiv 2502.13923): the decoder of Qwen2 with places in time, row and column, and a vision tower."""

from dataclasses import replace

from fairlead_protocol.models.json_fields import JsonFields
from fairlead_protocol.models.model_config import ModelConfig, parse_shape
from fairlead_protocol.models.rope_config import RopeConfig
from fairlead_protocol.models.vision_config import parse_vision
from fairlead_protocol.models.windows import windows_by_layer

_SECTIONS = [16, 24, 24]


def parse_qwen2_5_vl(fields: JsonFields) -> ModelConfig:
    """The decoder's fields are in `text_config`, or in older files beside `vision_config`."""
    text = fields.with_section("text_config")
    config = ModelConfig(
        **parse_shape(
            text, rms_norm_eps=1e-5, rope_theta=1e6, windows=windows_by_layer, rope_names={"mrope": "default"}
        ),
        qkv_bias=True,
        vision=parse_vision(fields, text.positive_int("hidden_size")),
    )
    if config.vision is not None and config.vision.image_token_id >= config.vocab_size:
        raise fields.invalid("image_token_id", f"must be below vocab_size ({config.vocab_size})")
    return replace(config, rope=_with_sections(text, config.rope, config.head_dim))


def _with_sections(fields: JsonFields, rope: RopeConfig, head_dim: int) -> RopeConfig:
    scaling = fields.section("rope_parameters") or fields.section("rope_scaling") or JsonFields.empty(fields.path)
    sections = tuple(scaling.positive_ints("mrope_section") or _SECTIONS)
    if len(sections) != 3 or sum(sections) != head_dim // 2:
        raise scaling.invalid("mrope_section", f"must be three numbers that add up to {head_dim // 2}, half a head")
    return replace(rope, sections=sections)
