"""The vision tower of Gemma 3, SigLIP (arXiv 2303.15343), as a checkpoint's files describe it: its shape, and the
treatment of images before it. Every image becomes a square of the same size, and the same number of tokens.
"""

from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead_common.models.image_settings import BILINEAR, ImageSettings, read_processor
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.vision_config import VisionConfig, vision_section
from fairlead_common.models.weight_formats import WeightPart, WeightRole, vector

_BEGIN, _END, _TOKEN, _TOKENS = 255_999, 256_000, 262_144, 256
"""Of transformers' Gemma3Config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiglipConfig(VisionConfig):
    """A patch sees the whole image; a vector is the mean of merged patches, projected."""

    begin_token_id: int
    """Before an image's tokens; a chat template writes it alone."""
    end_token_id: int
    """Behind an image's tokens."""
    side: int
    """Rows and columns of vectors of an image."""
    norm_eps: float

    @property
    def image_size(self) -> int:
        """Side, in pixels, of every image."""
        return self.side * self.merge_size * self.patch_size

    @property
    def num_patches(self) -> int:
        """Of an image."""
        return (self.side * self.merge_size) ** 2

    def parts(self) -> list[WeightPart]:
        """Weights of the tower and the projector, all in full precision."""
        size, inner, num, keep = self.hidden_size, self.intermediate_size, self.num_layers, WeightRole.PRECISE
        return [
            WeightPart("vision_tower.patch_embedding", 1, size, self.patch_elements, keep, size),
            WeightPart("vision_tower.position_embedding", 1, self.num_patches, size, keep),
            WeightPart("vision_tower.self_attn.qkv", num, 3 * size, size, keep, 3 * size),
            WeightPart("vision_tower.self_attn.out_proj", num, size, size, keep, size),
            WeightPart("vision_tower.mlp.fc1", num, inner, size, keep, inner),
            WeightPart("vision_tower.mlp.fc2", num, size, inner, keep, size),
            vector("vision_tower.norms", 2 * (2 * num + 1), size),
            vector("multi_modal_projector.mm_soft_emb_norm", 1, size),
            WeightPart("multi_modal_projector.mm_input_projection", 1, self.out_size, size, keep),
        ]


def parse_siglip(fields: JsonFields, hidden_size: int) -> SiglipConfig:
    """Of Gemma 3's `config.json`; `hidden_size`: of the decoder. Raises ModelLoadError: ModelConfigInvalid, or
    UnsupportedArchitecture for a tower without a layer here."""
    found = vision_section(fields, "gelu_pytorch_tanh")
    if (found.text("model_type") or "siglip_vision_model") != "siglip_vision_model":
        raise found.unsupported("model_type", "siglip_vision_model is supported")
    image_size, patch_size = found.positive_int("image_size", 224), found.positive_int("patch_size", 16)
    if image_size % patch_size:
        raise found.unsupported("image_size", f"a multiple of patch_size ({patch_size}) is supported")
    num_tokens, patches = fields.positive_int("mm_tokens_per_image", _TOKENS), image_size // patch_size
    side = isqrt(num_tokens)
    if side**2 != num_tokens or patches % side:
        remedy = f"a square of a number that divides the {patches} patches of an image's side is supported"
        raise fields.unsupported("mm_tokens_per_image", remedy)
    config = SiglipConfig(
        image_token_id=fields.positive_int("image_token_index", _TOKEN),
        begin_token_id=fields.positive_int("boi_token_index", _BEGIN),
        end_token_id=fields.positive_int("eoi_token_index", _END),
        side=side,
        num_layers=found.positive_int("num_hidden_layers", 12),
        hidden_size=found.positive_int("hidden_size", 768),
        intermediate_size=found.positive_int("intermediate_size", 3072),
        num_heads=found.positive_int("num_attention_heads", 12),
        patch_size=patch_size,
        temporal_patch_size=1,
        merge_size=patches // side,
        norm_eps=found.positive_number("layer_norm_eps", 1e-6),
        out_size=hidden_size,
    )
    if config.hidden_size % config.num_heads:
        raise found.invalid("num_attention_heads", "must divide hidden_size")
    return config


class _Square(msgspec.Struct):
    height: int
    width: int


class _SquareProcessor(msgspec.Struct):
    """Fields of the file; values that ask for unsupported preprocessing are refused. Null = as transformers does."""

    size: _Square = msgspec.field(default_factory=lambda: _Square(224, 224))
    image_mean: Annotated[tuple[float, ...], Meta(min_length=3, max_length=3)] = (0.5, 0.5, 0.5)
    image_std: Annotated[tuple[float, ...], Meta(min_length=3, max_length=3)] = (0.5, 0.5, 0.5)
    resample: int = BILINEAR
    rescale_factor: float = 1 / 255
    do_resize: bool | None = True
    do_rescale: bool | None = True
    do_normalize: bool | None = True
    do_pan_and_scan: bool | None = False


def read_square_settings(folder: Path, config: SiglipConfig) -> ImageSettings:
    """Of the processor of Gemma 3. Raises ModelLoadError: ModelNotFound, ModelConfigInvalid."""
    return read_processor(folder, _SquareProcessor, lambda fields: _settings(fields, config))


def _settings(fields: _SquareProcessor, config: SiglipConfig) -> ImageSettings:
    """Raises ValueError."""
    for name in ("do_resize", "do_rescale", "do_normalize"):
        if not getattr(fields, name):
            raise ValueError(f"{name} is false, and images are always treated so")
    if fields.do_pan_and_scan:
        raise ValueError("do_pan_and_scan is true, and images are not cut into pieces here")
    if fields.resample != BILINEAR or abs(fields.rescale_factor * 255 - 1) > 1e-6:
        raise ValueError("images are resized with the bilinear filter (resample 2), and divided by 255")
    if not fields.size.height == fields.size.width == config.image_size:
        size = f"{fields.size.height} x {fields.size.width}"
        raise ValueError(f"size is {size}, and vision_config's image_size in config.json {config.image_size}")
    return ImageSettings(
        image_token_id=config.image_token_id,
        patch_size=config.patch_size,
        merge_size=config.merge_size,
        temporal_patch_size=config.temporal_patch_size,
        min_pixels=config.image_size**2,
        max_pixels=config.image_size**2,
        mean=fields.image_mean,
        std=fields.image_std,
        resample=BILINEAR,
        side=config.side,
        frame=(config.begin_token_id, config.end_token_id),
        see_each_other=True,
    )
