"""Qwen's models that see: decoders of Qwen whose tokens have places in time, row and column, and a vision tower.
Sources: arXiv 2502.13923 (Qwen2.5-VL), 2511.21631 (Qwen3-VL)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fairlead_common.models.families.dense import Config, parse_qwen3
from fairlead_common.models.families.experts import QwenExpertsConfig, parse_qwen3_moe
from fairlead_common.models.families.family import Family
from fairlead_common.models.families.recurrent import parse_qwen3_5, parse_qwen3_5_moe
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.model_config import ModelConfig, parse_shape, windows_by_layer
from fairlead_common.models.rope_config import RopeConfig
from fairlead_common.models.vision_config import VisionConfig, image_token, vision_section
from fairlead_common.models.weight_formats import WeightPart, WeightRole, gated_feed_forward, vector

_PRECISE = WeightRole.PRECISE


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen25VisionConfig(VisionConfig):
    """The tower of Qwen2.5-VL, with layers like those of its decoder."""

    def parts(self) -> list[WeightPart]:
        size, num = self.hidden_size, self.num_layers
        return [
            *_common_parts(self, "visual"),
            *gated_feed_forward("visual.mlp", num, size, self.intermediate_size, bias=True, role=_PRECISE),
            vector("visual.norms", 2 * num + 1, size),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3VisionConfig(VisionConfig):
    """The tower of Qwen3-VL, with learned positions."""

    num_positions: int
    """Vectors of positions: of a square."""
    deep_layers: tuple[int, ...]
    """Layers whose outputs are added to image tokens behind the decoder's first layers."""

    def parts(self) -> list[WeightPart]:
        size, num, inner = self.hidden_size, self.num_layers, self.intermediate_size
        merged, deep = size * self.merge_size**2, len(self.deep_layers)
        name = "model.visual"
        return [
            *_common_parts(self, name, 1 + deep),
            vector(f"{name}.patch_embed.bias", 1, size),
            vector(f"{name}.pos_embed", self.num_positions, size),
            WeightPart(f"{name}.mlp.up", num, inner, size, _PRECISE, inner),
            WeightPart(f"{name}.mlp.down", num, size, inner, _PRECISE, size),
            vector(f"{name}.norms", 2 * (2 * num + 1), size),
            vector(f"{name}.deepstack_merger_list.norm", 2 * deep, merged),
        ]


def _common_parts(config: VisionConfig, name: str, num_mergers: int = 1) -> list[WeightPart]:
    """Of all towers of Qwen: everything but positions, feed-forwards, normalisations, and the bias of patches."""
    size, num, merged = config.hidden_size, config.num_layers, config.hidden_size * config.merge_size**2
    return [
        WeightPart(f"{name}.patch_embed", 1, size, config.patch_elements, _PRECISE),
        WeightPart(f"{name}.attn.qkv", num, 3 * size, size, _PRECISE, 3 * size),
        WeightPart(f"{name}.attn.proj", num, size, size, _PRECISE, size),
        WeightPart(f"{name}.merger.inner", num_mergers, merged, merged, _PRECISE, merged),
        WeightPart(f"{name}.merger.output", num_mergers, config.out_size, merged, _PRECISE, config.out_size),
    ]


def parse_qwen2_5_vl(fields: JsonFields) -> ModelConfig:
    """The decoder's fields are in `text_config`, or in older files beside `vision_config`."""
    text = fields.with_section("text_config")
    shape = parse_shape(
        text, rms_norm_eps=1e-5, rope_theta=1e6, windows=windows_by_layer, rope_names={"mrope": "default"}
    )
    config = ModelConfig(**shape, qkv_bias=True)
    tower = vision_section(fields, "silu")
    tower_shape = _tower_shape(
        tower, image_token(fields, config.vocab_size), config.hidden_size, patch_size=14, num_layers=32
    )
    vision = Qwen25VisionConfig(
        **tower_shape,
        window_patches=tower.positive_int("window_size", 112) // tower_shape["merge_size"] // tower_shape["patch_size"],
        whole_layers=frozenset(tower.whole_numbers("fullatt_block_indexes")),
    )
    if not vision.window_patches:
        raise tower.invalid("window_size", "must hold a patch")
    return replace(config, vision=vision, rope=_with_sections(text, config, [16, 24, 24]))


def parse_qwen3_vl(fields: JsonFields) -> ModelConfig:
    return _seeing(fields, parse_qwen3, [24, 20, 20])


def parse_qwen3_vl_moe(fields: JsonFields) -> QwenExpertsConfig:
    return _seeing(fields, lambda text: parse_qwen3_moe(text.with_changes({"norm_topk_prob": True})), [24, 20, 20])


def parse_qwen3_5_vl(fields: JsonFields) -> ModelConfig:
    return _seeing(fields, parse_qwen3_5, [11, 11, 10], is_deep=False)


def parse_qwen3_5_vl_moe(fields: JsonFields) -> QwenExpertsConfig:
    return _seeing(fields, parse_qwen3_5_moe, [11, 11, 10], is_deep=False)


def _seeing(
    fields: JsonFields, parse: Callable[[JsonFields], Config], sections: list[int], *, is_deep: bool = True
) -> Config:
    """A decoder of another family, told of by `text_config`, and the tower. `sections`: the family's default of
    `mrope_section`; `is_deep`: whether outputs of some layers of the tower go to layers of the decoder."""
    tied = {"tie_word_embeddings": fields.boolean("tie_word_embeddings", False)}  # of the decoder it is said wrongly
    text = fields.with_section("text_config", {"rope_theta": 500_000.0}, tied)
    config, tower = parse(text), vision_section(fields, "gelu_pytorch_tanh")
    token = image_token(fields, config.vocab_size)
    vision = Qwen3VisionConfig(
        **_tower_shape(tower, token, config.hidden_size, patch_size=16, num_layers=27),
        num_positions=tower.positive_int("num_position_embeddings", 2304),
        deep_layers=tuple(tower.whole_numbers("deepstack_visual_indexes")) if is_deep else (),
    )
    if math.isqrt(vision.num_positions) ** 2 != vision.num_positions:
        raise tower.invalid("num_position_embeddings", "must be the square of a number")
    if (deep := vision.deep_layers) != tuple(sorted({*deep})) or any(layer >= vision.num_layers for layer in deep):
        raise tower.invalid("deepstack_visual_indexes", f"must be layers below depth ({vision.num_layers}) in order")
    if len(deep) >= config.num_layers:
        raise tower.invalid("deepstack_visual_indexes", f"must be fewer than num_hidden_layers ({config.num_layers})")
    rope = replace(_with_sections(text, config, sections), are_sections_mixed=True)
    return replace(config, vision=vision, rope=rope)


def _tower_shape(
    tower: JsonFields, image_token_id: int, hidden_size: int, *, patch_size: int, num_layers: int
) -> dict[str, Any]:
    """Fields of `VisionConfig`. `hidden_size`: of the decoder; `patch_size`, `num_layers`: the family's defaults.
    Raises ModelLoadError: ModelConfigInvalid."""
    shape = {
        "image_token_id": image_token_id,
        "num_layers": tower.positive_int("depth", num_layers),
        "hidden_size": tower.positive_int("hidden_size"),
        "intermediate_size": tower.positive_int("intermediate_size"),
        "num_heads": tower.positive_int("num_heads", 16),
        "patch_size": tower.positive_int("patch_size", patch_size),
        "temporal_patch_size": tower.positive_int("temporal_patch_size", 2),
        "merge_size": tower.positive_int("spatial_merge_size", 2),
        "out_size": tower.positive_int("out_hidden_size", hidden_size),
    }
    if shape["hidden_size"] % (4 * shape["num_heads"]):
        raise tower.invalid("num_heads", "must divide hidden_size into heads of a multiple of four elements")
    if shape["out_size"] != hidden_size:
        raise tower.invalid("out_hidden_size", f"must be the decoder's hidden_size ({hidden_size})")
    return shape


def _with_sections(text: JsonFields, config: ModelConfig, default: list[int]) -> RopeConfig:
    """The decoder's rotary embedding, by three places of a token."""
    scaling = text.section("rope_parameters") or text.section("rope_scaling") or JsonFields.empty(text.path)
    sections = tuple(scaling.positive_ints("mrope_section") or default)
    pairs = config.rope.num_turned(config.head_dim) // 2
    if len(sections) != 3 or sum(sections) != pairs:
        raise scaling.invalid(
            "mrope_section", f"must be three numbers that add up to {pairs}, the pairs of a head that are turned"
        )
    return replace(config.rope, sections=sections)


FAMILIES = (
    Family(
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl",
        parse_qwen2_5_vl,
        "Qwen2.5-VL: chats with [images]; videos are refused",
    ),
    Family(
        "Qwen3VLForConditionalGeneration",
        "qwen3_vl",
        parse_qwen3_vl,
        "Qwen3-VL, dense: chats with [images]; videos are refused",
    ),
    Family(
        "Qwen3VLMoeForConditionalGeneration",
        "qwen3_vl_moe",
        parse_qwen3_vl_moe,
        "Qwen3-VL with sparse experts, likewise",
    ),
    Family(
        "Qwen3_5ForConditionalGeneration",
        "qwen3_5",
        parse_qwen3_5_vl,
        "Qwen3.5, dense, as published: chats with [images], too",
    ),
    Family(
        "Qwen3_5MoeForConditionalGeneration",
        "qwen3_5_moe",
        parse_qwen3_5_vl_moe,
        "Qwen3.5 with sparse experts, likewise",
        built_as="Qwen3_5ForConditionalGeneration",
    ),
)
