"""Vision towers: an image's pixels in, a vector for each of its tokens out.

A transformer without a cache. A patch sees the whole image, or in most layers its window. Families choose layers, and
what comes before and after them (`model/families/`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from fairlead_common.models.image_settings import ImageSettings
from fairlead_common.models.rope_config import RopeConfig
from fairlead_common.models.vision_config import VisionConfig
from fairlead_engine.kernels.attention.whole_prompts import PromptGroup, attend_whole, group_prompts
from fairlead_engine.kernels.norm_rope_store import rotate
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.model.layers import FeedForward, RMSNorm, Rotation
from fairlead_engine.model.linear import Linear
from fairlead_engine.model.rope import inverse_frequencies

_ROPE = RopeConfig(theta=10000.0)
_MAX_BYTE = 255.0


def patches(pixels: Tensor, settings: ImageSettings) -> Tensor:
    """pixels uint8 [height, width, 3], of whole merged patches → float32 [patches, channels x pictures x patch_size²].
    Merged patches come in reading order, and the patches of each after one another."""
    size, merge = settings.patch_size, settings.merge_size
    height, width, channels = pixels.shape
    mean, std = (torch.tensor(each, device=pixels.device) for each in (settings.mean, settings.std))
    colours = ((pixels.float() / _MAX_BYTE - mean) / std).permute(2, 0, 1)
    rows, columns = height // size // merge, width // size // merge
    cut = colours.reshape(channels, rows, merge, size, columns, merge, size).permute(1, 4, 2, 5, 0, 3, 6)
    repeated = cut.unsqueeze(5).expand(*cut.shape[:5], settings.temporal_patch_size, *cut.shape[5:])
    return repeated.reshape(rows * columns * merge**2, -1)


Numbers = npt.NDArray[np.int64]


class PatchGrid(NamedTuple):
    """An image's patches in the tower's order, with their places and windows; int64. Patches come merged, `merge_size`
    squared after one another, in reading order. The tower takes them by windows: a window's patches lie side by
    side."""

    order: Numbers
    """[patches]: index of each in the image's own order."""
    places: Numbers
    """[2, patches]: row and column of each in the image."""
    window_lengths: Numbers
    """Patches of each window."""
    back: Numbers
    """[merged patches]: where in the tower's order the image's own order is."""


def patch_grid(config: VisionConfig, rows: int, columns: int) -> PatchGrid:
    """For an image of `rows` x `columns` merged patches."""
    merge, side = config.merge_size, config.window_patches or max(rows, columns)
    row, column = np.divmod(np.arange(rows * columns), columns)
    window = row // side * -(-columns // side) + column // side
    by_window = np.argsort(window, kind="stable")
    within = np.arange(merge**2)
    order = (by_window[:, None] * merge**2 + within).ravel()
    places = np.stack(
        [
            (row[by_window][:, None] * merge + within // merge).ravel(),
            (column[by_window][:, None] * merge + within % merge).ravel(),
        ]
    )
    _, counts = np.unique(window, return_counts=True)
    return PatchGrid(order, places, counts * merge**2, np.argsort(by_window))


@dataclass(frozen=True, slots=True)
class VisionLayer:
    """Attention, then feed-forward, each of which adds to the stream."""

    before_attention: RMSNorm
    qkv: Linear
    output: Linear
    before_feed_forward: RMSNorm
    feed_forward: FeedForward
    num_heads: int

    def __call__(self, stream: Tensor, rotation: Rotation | None, groups: list[PromptGroup]) -> Tensor:
        """stream [patches, hidden]; the rotation is in float32, None = none."""
        heads = self.qkv(self.before_attention.alone(stream)).view(len(stream), 3 * self.num_heads, -1)
        turned, value = torch.split(heads, [2 * self.num_heads, self.num_heads], dim=1)
        if rotation is not None:
            turned = rotate(turned.float(), rotation.cosines, rotation.sines).to(value.dtype)
        query, key = torch.split(turned, self.num_heads, dim=1)
        stream = stream + self.output(attend_whole(query, key, value, groups))
        return stream + self.feed_forward(self.before_feed_forward.alone(stream))


@dataclass(frozen=True, slots=True)
class PatchMerger:
    """Projects the patches of a merged patch to one vector of the decoder's width."""

    norm: RMSNorm
    """Of each patch, or of all that are merged as one vector."""
    inner: Linear
    output: Linear
    num_merged: int

    def __call__(self, stream: Tensor) -> Tensor:
        """[patches, hidden] → [merged patches, out]."""
        normed = self.norm.alone(stream.view(-1, len(self.norm.weight)))
        joined = normed.view(len(stream) // self.num_merged, -1)
        return self.output(functional.gelu(self.inner(joined)))


@dataclass(frozen=True, slots=True)
class StretchedPositions:
    """Learned vectors of the places in a square, interpolated for an image of any size."""

    weight: Tensor
    """[side x side, hidden]."""

    def __call__(self, places: Numbers) -> Tensor:
        """places int64 [2, patches], row and column of all patches of an image → [patches, hidden]."""
        side = round(len(self.weight) ** 0.5)
        square = self.weight.float().T.reshape(1, -1, side, side)
        size = [int(last) + 1 for last in places.max(1)]
        stretched: Tensor = torch.ops.aten.upsample_bilinear2d(square, size, True)[0]  # corners stay where they are
        row, column = to_device(places, self.weight.device)
        return stretched[:, row, column].T.to(self.weight.dtype)


@dataclass(frozen=True, slots=True)
class VisionTower:
    """Immutable; computes one image at a time, independently of others."""

    config: VisionConfig
    embedding: Linear
    """[patches, elements] → [patches, hidden]."""
    layers: tuple[VisionLayer, ...]
    merger: Callable[[Tensor], Tensor]
    """[patches, hidden] → [merged patches, out]."""
    dtype: torch.dtype
    device: torch.device
    positions: StretchedPositions | None = None
    """Added to embeddings; None = nothing is."""
    turns: bool = True
    """Whether layers rotate heads by the patch's place."""
    deep_mergers: Mapping[int, PatchMerger] = field(default_factory=dict)
    """By layer, in order: make of its output what is added behind the decoder's first layers (`GivenEmbeddings`)."""

    def __call__(self, pixels: Tensor, settings: ImageSettings) -> Tensor:
        """pixels uint8 [height, width, 3] on the device, of whole merged patches → [tokens, (1 + deep mergers) x out],
        in reading order."""
        config, device = self.config, self.device
        grid = patch_grid(config, pixels.shape[0] // settings.factor, pixels.shape[1] // settings.factor)
        windows = group_prompts(grid.window_lengths, device)
        whole = group_prompts(grid.window_lengths.sum(keepdims=True), device)
        rotation = self._rotation(grid.places) if self.turns else None
        stream = self.embedding(patches(pixels, settings).to(self.dtype)[to_device(grid.order, device)])
        if self.positions is not None:
            stream = stream + self.positions(grid.places)
        deep = []
        for index, layer in enumerate(self.layers):
            stream = layer(stream, rotation, whole if index in config.whole_layers else windows)
            if index in self.deep_mergers:
                deep.append(self.deep_mergers[index](stream))
        return torch.cat((self.merger(stream), *deep), dim=1)[to_device(grid.back, device)]

    def _rotation(self, places: Numbers) -> Rotation:
        """Rotates a quarter of a head's elements by row, a quarter by column, and the other half likewise."""
        frequencies = inverse_frequencies(_ROPE, self.config.head_dim // 2).to(self.device)
        by_row, by_column = to_device(places, self.device).float().unsqueeze(-1) * frequencies
        angles = torch.cat((by_row, by_column), dim=-1).unsqueeze(1)
        cosines, sines = angles.cos(), angles.sin()
        return Rotation(torch.cat((cosines, cosines), dim=-1), torch.cat((-sines, sines), dim=-1))
