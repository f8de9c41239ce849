"""The vision tower, as `config.json` describes it, and the weights that it takes; families add fields."""

from dataclasses import dataclass

from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.weight_formats import WeightPart

_CHANNELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """Shape of a vision tower. Sizes count elements, or pixels where noted."""

    image_token_id: int
    """The token that stands for a merged patch in a prompt."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    """Pixels of a side of a patch."""
    temporal_patch_size: int
    """Frames of a video per patch."""
    merge_size: int
    """Side of the square of patches behind one vector."""
    out_size: int
    """Elements of an output vector: the decoder's hidden size."""
    window_patches: int = 0
    """Merged patches of a side of the window that a patch sees in most layers; 0 = it sees the whole image in all."""
    whole_layers: frozenset[int] = frozenset()
    """Layers with attention over the whole image, where others have windows."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def patch_elements(self) -> int:
        """Numbers that a patch has."""
        return _CHANNELS * self.temporal_patch_size * self.patch_size**2

    def parts(self) -> list[WeightPart]:
        """Weights of the tower, all in full precision."""
        raise NotImplementedError


def vision_section(fields: JsonFields, activation: str) -> JsonFields:
    """The fields of the tower. Raises ModelLoadError: ModelConfigInvalid, or UnsupportedArchitecture for a tower with
    another activation than the family's, or with other images."""
    found = fields.section("vision_config")
    if found is None:
        raise fields.invalid("vision_config", "must say what the vision tower is made of")
    if (found.text("hidden_act") or activation) != activation:
        raise found.unsupported("hidden_act", f"{activation} is supported")
    for name in ("in_channels", "in_chans", "num_channels"):
        if found.positive_int(name, _CHANNELS) != _CHANNELS:
            raise found.unsupported(name, "images have three channels")
    return found


def image_token(fields: JsonFields, vocab_size: int) -> int:
    """The id of the token that stands for a patch. Raises ModelLoadError: ModelConfigInvalid."""
    found = fields.token_ids("image_token_id")
    if len(found) != 1:
        raise fields.invalid("image_token_id", "must be a token id")
    if found[0] >= vocab_size:
        raise fields.invalid("image_token_id", f"must be below vocab_size ({vocab_size})")
    return found[0]
