"""The shape of a vision tower, as `vision_config` in `config.json` has it."""

from dataclasses import dataclass

from fairlead_protocol.models.json_fields import JsonFields
from fairlead_protocol.models.weight_parts import WeightPart, WeightRole, gated_feed_forward, vector

_CHANNELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """Sizes count elements, or pixels where that is said."""

    image_token_id: int
    """The token that stands for a merged patch in a prompt."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    """Pixels of a side of a patch."""
    temporal_patch_size: int
    """Pictures of a film that a patch has."""
    merge_size: int
    """So many patches side by side, and one above the other, become one vector."""
    window_size: int
    """Pixels of a side of what a patch sees in most layers."""
    whole_layers: frozenset[int]
    """Layers in which each patch sees the whole image."""
    out_size: int
    """Of the vectors that come out."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def patch_elements(self) -> int:
        """Numbers that a patch has."""
        return _CHANNELS * self.temporal_patch_size * self.patch_size**2

    def parts(self) -> list[WeightPart]:
        """The tower's weights, all of which keep their precision."""
        size, inner, num, keep = self.hidden_size, self.intermediate_size, self.num_layers, WeightRole.PRECISE
        merged = size * self.merge_size**2
        return [
            WeightPart("visual.patch_embed", 1, size, self.patch_elements, keep),
            WeightPart("visual.attn.qkv", num, 3 * size, size, keep, 3 * size),
            WeightPart("visual.attn.proj", num, size, size, keep, size),
            *gated_feed_forward("visual.mlp", num, size, inner, bias=True, role=keep),
            vector("visual.norms", 2 * num + 1, size),
            WeightPart("visual.merger.mlp.0", 1, merged, merged, keep, merged),
            WeightPart("visual.merger.mlp.2", 1, self.out_size, merged, keep, self.out_size),
        ]

    @property
    def window_patches(self) -> int:
        """Merged patches of a side of a window."""
        return self.window_size // self.merge_size // self.patch_size


def parse_vision(fields: JsonFields, hidden_size: int) -> VisionConfig:
    """Of Qwen2.5-VL's `config.json`; `hidden_size`: of the decoder. Raises ModelLoadError: ModelConfigInvalid, or
    UnsupportedArchitecture for what no layer here computes."""
    found = fields.section("vision_config")
    if found is None:
        raise fields.invalid("vision_config", "must say what the vision tower is made of")
    image_token_id = fields.token_ids("image_token_id")
    if len(image_token_id) != 1:
        raise fields.invalid("image_token_id", "must be a token id")
    if (found.text("hidden_act") or "silu") != "silu":
        raise found.unsupported("hidden_act", "silu is supported")
    for name in ("in_channels", "in_chans"):
        if found.positive_int(name, _CHANNELS) != _CHANNELS:
            raise found.unsupported(name, "images have three channels")
    config = VisionConfig(
        image_token_id=image_token_id[0],
        num_layers=found.positive_int("depth", 32),
        hidden_size=found.positive_int("hidden_size"),
        intermediate_size=found.positive_int("intermediate_size"),
        num_heads=found.positive_int("num_heads", 16),
        patch_size=found.positive_int("patch_size", 14),
        temporal_patch_size=found.positive_int("temporal_patch_size", 2),
        merge_size=found.positive_int("spatial_merge_size", 2),
        window_size=found.positive_int("window_size", 112),
        whole_layers=frozenset(found.whole_numbers("fullatt_block_indexes")),
        out_size=found.positive_int("out_hidden_size", hidden_size),
    )
    if config.hidden_size % config.num_heads or config.head_dim % 4:
        raise found.invalid("num_heads", "must divide hidden_size into heads of a multiple of four elements")
    if config.out_size != hidden_size:
        raise found.invalid("out_hidden_size", f"must be the decoder's hidden_size ({hidden_size})")
    if not config.window_patches:
        raise found.invalid("window_size", "must hold a patch")
    return config
