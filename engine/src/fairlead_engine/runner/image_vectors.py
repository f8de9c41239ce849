"""What a vision tower has made of the images of prompts under way: each is computed once, when it is first needed.

It is kept until the chunk with the last of its tokens is computed. A prompt that begins anew, or whose blocks hold part
of an image only, has it computed again.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from fairlead_engine.image_settings import ImageSettings
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.model.layers import GivenEmbeddings
from fairlead_engine.model.vision.vision_tower import VisionTower
from fairlead_engine.runner.step_plan import PlannedImage

_CHANNELS = 3


class ImageVectors:
    """Of one model; knows requests by their ids alone."""

    def __init__(self, tower: VisionTower, settings: ImageSettings) -> None:
        self._tower = tower
        self._settings = settings
        self._kept: dict[str, dict[int, Tensor]] = {}
        """By request, then by the image's first position: [tokens, hidden]."""
        self.num_computed = 0
        """Images that went through the tower."""

    def rows(self, planned: Sequence[PlannedImage]) -> GivenEmbeddings | None:
        """What the step has in place of these tokens; None where there are none."""
        if not planned:
            return None
        rows = np.concatenate([np.arange(each.row, each.row + each.end - each.start) for each in planned])
        vectors = torch.cat([self._of(each)[each.start : each.end] for each in planned])
        return GivenEmbeddings(to_device(rows, vectors.device), vectors)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Those of requests that will not run again; unknown ids are ignored."""
        for request_id in request_ids:
            self._kept.pop(request_id, None)

    @torch.inference_mode()
    def largest(self) -> Tensor:
        """What the tower makes of the largest image, of which nobody asked: to see what memory that takes."""
        factor, most = self._settings.factor, self._settings.most_tokens
        rows = int(most**0.5)
        pixels = torch.zeros((rows * factor, most // rows * factor, _CHANNELS), dtype=torch.uint8)
        return self._tower(pixels.to(self._tower.device), self._settings)

    def _of(self, planned: PlannedImage) -> Tensor:
        """[tokens, hidden], of the whole image."""
        kept = self._kept.setdefault(planned.request_id, {})
        image = planned.image
        vectors = kept.get(image.start)
        if vectors is None:
            factor = self._settings.factor
            shape = image.rows * factor, image.columns * factor, _CHANNELS
            pixels = to_device(np.frombuffer(bytearray(image.pixels), np.uint8).reshape(shape), self._tower.device)
            vectors = kept[image.start] = self._tower(pixels, self._settings)
            self.num_computed += 1
        if planned.end == image.num_tokens:
            del kept[image.start]
            if not kept:
                del self._kept[planned.request_id]
        return vectors
