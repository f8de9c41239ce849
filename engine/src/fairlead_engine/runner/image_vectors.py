"""A vision tower's vectors of images in running prompts: each image is computed once, when first needed, on every rank.

Vectors are kept until the chunk with the image's last token is computed, or others need the room. They are computed
again for a restarted prompt, an image cached in part, or a dropped image.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from fairlead_common.models.image_settings import ImageSettings
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.model.layers import GivenEmbeddings
from fairlead_engine.model.vision_tower import VisionTower
from fairlead_engine.runner.step_plan import PlannedImage

_CHANNELS = 3
_MOST_BYTES = 256 * 2**20
"""Kept beside the image used last; large images take a hundred million bytes."""


class ImageVectors:
    """Vectors of one model's images, by request id."""

    def __init__(self, tower: VisionTower, settings: ImageSettings) -> None:
        self._tower = tower
        self._settings = settings
        self._kept: OrderedDict[tuple[str, int, bytes], Tensor] = OrderedDict()
        """By request, the image's first position and digest, the last used last: what the tower made, a row for each
        token. Ranks but the first do not learn of ended requests, whose vectors others then push out."""
        self.num_bytes = 0
        """Bytes of all kept vectors."""
        self.num_computed = 0
        """Images that went through the tower."""

    def rows(self, planned: Sequence[PlannedImage]) -> GivenEmbeddings | None:
        """Embeddings for these tokens of the step; None without images."""
        if not planned:
            return None
        rows = np.concatenate([np.arange(each.row, each.row + each.end - each.start) for each in planned])
        parts = [self._part(each) for each in planned]
        vectors = parts[0] if len(parts) == 1 else torch.cat(parts)
        return GivenEmbeddings(to_device(rows, vectors.device), vectors)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drops the vectors of ended requests; unknown ids are ignored."""
        if not self._kept:
            return
        gone = set(request_ids)
        for key in [key for key in self._kept if key[0] in gone]:
            self._drop(key)

    @torch.inference_mode()
    def largest(self) -> tuple[Tensor, Tensor]:
        """Vectors of the largest image, and as much memory as may be kept beside, to measure the need."""
        factor, most = self._settings.factor, self._settings.most_tokens
        rows = int(most**0.5)
        pixels = torch.zeros((rows * factor, most // rows * factor, _CHANNELS), dtype=torch.uint8)
        beside = torch.empty(_MOST_BYTES, dtype=torch.uint8, device=self._tower.device)
        return self._tower(pixels.to(self._tower.device), self._settings), beside

    def _part(self, planned: PlannedImage) -> Tensor:
        """Rows of the step's tokens; a copy of a part, because a view would keep the rest alive."""
        vectors, is_last = self._of(planned), planned.end == planned.image.num_tokens
        if is_last:
            self._drop(_key(planned))
        if planned.start == 0 and is_last:
            return vectors
        return vectors[planned.start : planned.end].clone()

    def _drop(self, key: tuple[str, int, bytes]) -> None:
        self.num_bytes -= self._kept.pop(key).nbytes

    def _of(self, planned: PlannedImage) -> Tensor:
        """Rows of the whole image."""
        image, key = planned.image, _key(planned)
        vectors = self._kept.get(key)
        if vectors is None:
            factor = self._settings.factor
            shape = image.rows * factor, image.columns * factor, _CHANNELS
            pixels = to_device(np.frombuffer(bytearray(image.pixels), np.uint8).reshape(shape), self._tower.device)
            vectors = self._kept[key] = self._tower(pixels, self._settings)
            self.num_bytes += vectors.nbytes
            self.num_computed += 1
            while self.num_bytes - vectors.nbytes > _MOST_BYTES:
                self._drop(next(iter(self._kept)))
        self._kept.move_to_end(key)
        return vectors


def _key(planned: PlannedImage) -> tuple[str, int, bytes]:
    return planned.request_id, planned.image.start, planned.image.digest
