"""Copies of a KV cache's blocks in the host's memory, in the attention backend's cache layout."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fairlead_engine.kernels.attention.backend import AttentionBackend, CacheLayout, LayerCache


class HostCache:
    """Places 0 to `num_places - 1` for blocks of the layers' `caches` on the device; undefined until saved."""

    def __init__(
        self, backend: AttentionBackend[Any, Any], layout: CacheLayout, caches: Sequence[LayerCache], num_places: int
    ) -> None:
        self._backend = backend
        self._layout = layout
        self._caches = caches
        host = replace(layout, num_layers=len(caches), device=torch.device("cpu"))
        self._places = backend.allocate(host, num_places)

    def save(self, blocks: Sequence[int], places: Sequence[int]) -> None:
        self._copy(self._caches, self._places, blocks, places)

    def load(self, places: Sequence[int], blocks: Sequence[int]) -> None:
        self._copy(self._places, self._caches, places, blocks)

    @torch.inference_mode()
    def _copy(
        self, caches: Sequence[LayerCache], copies: Sequence[LayerCache], sources: Sequence[int], targets: Sequence[int]
    ) -> None:
        found, wanted = torch.tensor(sources), torch.tensor(targets)
        for source, target in zip(caches, copies, strict=True):
            self._backend.copy_blocks(self._layout, source, target, found, wanted)
