"""Images, as the files of a checkpoint describe them: sizes and pixel values. Knows no pixels itself.

Both processes of an engine read the settings: for patches of images, and for the size of memory.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from fairlead_common.models.load_errors import ModelLoadError, ModelLoadReason

_Fields = TypeVar("_Fields", bound=msgspec.Struct)
_Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Three = Annotated[tuple[float, ...], Meta(min_length=3, max_length=3)]
MOST_UNEQUAL = 200
"""Largest ratio of the longer side of an image to the shorter side."""
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_FILES = ("preprocessor_config.json", "processor_config.json")
BILINEAR, BICUBIC = 2, 3
"""Filters that resize images, as Pillow numbers them."""


class ImageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Preprocessing of images for a model."""

    image_token_id: int
    """Token that stands for a merged patch of an image in a prompt."""
    patch_size: int
    """Pixels of a side of a patch as the vision tower takes it."""
    merge_size: int
    """Side of the square of patches behind one token."""
    temporal_patch_size: int
    """Frames of a video per patch; an image is repeated to fill them."""
    min_pixels: int
    """Smaller images are enlarged."""
    max_pixels: int
    """Larger images are reduced."""
    mean: tuple[float, ...]
    """Subtracted from red, green and blue, which lie between 0 and 1."""
    std: tuple[float, ...]
    """Divisor of red, green and blue after subtracting the mean."""
    resample: int = BICUBIC
    """The filter that resizes images."""
    side: int = 0
    """Rows and columns of tokens of every image, whatever its proportions; 0 = they follow its size."""
    frame: tuple[int, int] | None = None
    """Tokens before and behind those of an image, of which chat templates write the first alone
    (`PromptTokenizer.seeing`); None = they write `image_token_id`."""
    see_each_other: bool = False
    """Whether each token of an image sees the whole image; a step then computes all uncached tokens of the image."""

    @property
    def factor(self) -> int:
        """Side, in pixels, of the square that becomes a token."""
        return self.patch_size * self.merge_size

    @property
    def most_tokens(self) -> int:
        """Of the largest image."""
        return self.side**2 or max(1, self.max_pixels // self.factor**2)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tokens of an image with `height` x `width` pixels: nearly the same proportions,
        within the allowed number of pixels. Raises ValueError for an image far longer than wide. Source: `smart_resize`
        of the processor of Qwen2-VL."""
        if self.side:
            return self.side, self.side
        if max(height, width) > MOST_UNEQUAL * min(height, width):
            raise ValueError(f"is {width} x {height} pixels; no side may be over {MOST_UNEQUAL} times the other")
        factor, area = self.factor, height * width
        rows, columns = round(height / factor), round(width / factor)
        if rows * columns * factor**2 > self.max_pixels:
            shrink = math.sqrt(area / self.max_pixels)
            return max(1, math.floor(height / shrink / factor)), max(1, math.floor(width / shrink / factor))
        if rows * columns * factor**2 < self.min_pixels:
            grow = math.sqrt(self.min_pixels / area)
            return math.ceil(height * grow / factor), math.ceil(width * grow / factor)
        return rows, columns

    def bounded(self, max_pixels: int | None) -> "ImageSettings":
        """A copy with images of at most `max_pixels`; None = no further bound. Raises ValueError below the smallest
        image."""
        if max_pixels is None:
            return self
        if max_pixels < max(self.min_pixels, self.factor**2):
            raise ValueError(f"is below the {max(self.min_pixels, self.factor**2)} pixels of the smallest image")
        return msgspec.structs.replace(self, max_pixels=min(self.max_pixels, max_pixels))


class _Bounds(msgspec.Struct):
    shortest_edge: _Size = 56 * 56
    longest_edge: _Size = 28 * 28 * 1280


class _Processor(msgspec.Struct):
    """Fields of the file; values that ask for unsupported preprocessing are refused."""

    patch_size: _Size = 14
    temporal_patch_size: _Size = 2
    merge_size: _Size = 2
    min_pixels: _Size | None = None
    max_pixels: _Size | None = None
    size: _Bounds | None = None
    image_mean: _Three = _CLIP_MEAN
    image_std: _Three = _CLIP_STD
    resample: int = BICUBIC
    rescale_factor: float = 1 / 255
    do_resize: bool = True
    do_rescale: bool = True
    do_normalize: bool = True
    do_convert_rgb: bool = True


def read_image_settings(folder: Path, image_token_id: int) -> ImageSettings:
    """Of the processor of Qwen2-VL and later models. Raises ModelLoadError: ModelNotFound, ModelConfigInvalid."""
    return read_processor(folder, _Processor, lambda fields: _settings(fields, image_token_id))


def read_processor(folder: Path, kind: type[_Fields], settings: Callable[[_Fields], ImageSettings]) -> ImageSettings:
    """The `settings` of the file's fields, which raise ValueError. Raises ModelLoadError: ModelNotFound,
    ModelConfigInvalid."""
    path = next((folder / name for name in _FILES if (folder / name).exists()), None)
    if path is None:
        raise ModelLoadError(
            ModelLoadReason.MODEL_NOT_FOUND,
            f"{folder} has no {_FILES[0]}, which says how large the model wants its images; fetch it again",
        )
    try:
        content = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
        raw = content.get("image_processor")
        return settings(msgspec.json.decode(msgspec.json.encode(content) if raw is None else raw, type=kind))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(ModelLoadReason.MODEL_CONFIG_INVALID, f"{path} cannot be used: {error}") from error


def _settings(fields: _Processor, image_token_id: int) -> ImageSettings:
    """Raises ValueError."""
    for name in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        if not getattr(fields, name):
            raise ValueError(f"{name} is false, and images are always treated so")
    if fields.resample != BICUBIC or abs(fields.rescale_factor * 255 - 1) > 1e-6:
        raise ValueError(f"resample and rescale_factor must be {BICUBIC} (bicubic) and 1/255")
    if not all(0 < each < math.inf for each in fields.image_std):
        raise ValueError("image_std must be above 0")
    bounds = fields.size or _Bounds()
    settings = ImageSettings(
        image_token_id=image_token_id,
        patch_size=fields.patch_size,
        merge_size=fields.merge_size,
        temporal_patch_size=fields.temporal_patch_size,
        min_pixels=fields.min_pixels or bounds.shortest_edge,
        max_pixels=fields.max_pixels or bounds.longest_edge,
        mean=fields.image_mean,
        std=fields.image_std,
    )
    if settings.max_pixels < max(settings.min_pixels, settings.factor**2):
        raise ValueError("max_pixels is below min_pixels, or below one patch")
    return settings
