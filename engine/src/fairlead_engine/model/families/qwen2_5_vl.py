"""Qwen2.5-VL (arXiv 2502.13923): the decoder of Qwen2 with places in time, row and column, and a vision tower."""

from dataclasses import replace

from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.family import ModelFamily
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.layers import GatedFeedForward
from fairlead_engine.model.model_config import ModelConfig, parse_shape
from fairlead_engine.model.rope import RopeConfig
from fairlead_engine.model.vision.vision_config import VisionConfig, parse_vision
from fairlead_engine.model.vision.vision_tower import PatchMerger, VisionLayer, VisionTower
from fairlead_engine.model.weights import Weights
from fairlead_engine.model.windows import windows_by_layer

_SECTIONS = [16, 24, 24]
_NORM_EPS = 1e-6
"""Of the tower's normalisations, whatever those of the decoder have."""
_TOWER = "visual"


def parse(fields: JsonFields) -> ModelConfig:
    """The decoder's fields are in `text_config`, or in older files beside `vision_config`."""
    text = fields.with_section("text_config")
    config = ModelConfig(
        **parse_shape(
            text, rms_norm_eps=1e-5, rope_theta=1e6, windows=windows_by_layer, rope_names={"mrope": "default"}
        ),
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


def build(weights: Weights, config: ModelConfig) -> Decoder:
    assert config.vision is not None
    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, qkv_bias=True),
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp"),
        vision=_tower(weights, config.vision),
    )


def _tower(weights: Weights, config: VisionConfig) -> VisionTower:
    """Its products keep their precision, whatever the decoder's are rounded to, and no adapter changes them."""
    hidden, num_merged = config.hidden_size, config.merge_size**2
    merged = hidden * num_merged
    embedding = weights.patch_embedding(
        f"{_TOWER}.patch_embed.proj", hidden, 3, config.temporal_patch_size, config.patch_size, config.patch_size
    )
    layers = tuple(_layer(weights, f"{_TOWER}.blocks.{index}", config) for index in range(config.num_layers))
    inner, output = (
        weights.linear({f"{_TOWER}.merger.mlp.{name}": size}, merged, bias=True, is_sensitive=True)
        for name, size in ((0, merged), (2, config.out_size))
    )
    merger = PatchMerger(weights.norm(f"{_TOWER}.merger.ln_q", hidden, eps=_NORM_EPS), inner, output, num_merged)
    return VisionTower(config, embedding, layers, merger, weights.dtype, weights.device)


def _layer(weights: Weights, prefix: str, config: VisionConfig) -> VisionLayer:
    hidden, inner = config.hidden_size, config.intermediate_size
    return VisionLayer(
        before_attention=weights.norm(f"{prefix}.norm1", hidden, eps=_NORM_EPS),
        qkv=weights.linear({f"{prefix}.attn.qkv": 3 * hidden}, hidden, bias=True, is_sensitive=True),
        output=weights.linear({f"{prefix}.attn.proj": hidden}, hidden, bias=True, is_sensitive=True),
        before_feed_forward=weights.norm(f"{prefix}.norm2", hidden, eps=_NORM_EPS),
        feed_forward=GatedFeedForward(
            gate_up=weights.linear(
                {f"{prefix}.mlp.gate_proj": inner, f"{prefix}.mlp.up_proj": inner}, hidden, bias=True, is_sensitive=True
            ),
            down=weights.linear({f"{prefix}.mlp.down_proj": hidden}, inner, bias=True, is_sensitive=True),
        ),
        num_heads=config.num_heads,
    )


QWEN2_5_VL = ModelFamily("qwen2_5_vl", parse, build)
