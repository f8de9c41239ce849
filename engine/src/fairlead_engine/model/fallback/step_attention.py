"""Attention of one step of a foreign decoder: over our cache, by our backend."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fairlead_engine.kernels.attention.backend import LayerCache
from fairlead_engine.kernels.norm_rope import HeadTurn
from fairlead_engine.model.fallback.attention_survey import LayerAttention
from fairlead_engine.model.layers import ForwardInput


class StepAttention:
    """Layers come in the order in which they were surveyed."""

    def __init__(
        self, layers: Sequence[LayerAttention], head_dim: int, step: ForwardInput, caches: Sequence[LayerCache]
    ) -> None:
        """`head_dim`: of the cache, in which heads that are smaller are followed by zeros."""
        self._layers = zip(layers, caches, strict=True)
        self._head_dim = head_dim
        self._step = step
        unturned = torch.empty((len(step.positions), 1, 0), device=step.positions.device)
        self._turn = HeadTurn(layers[0].num_kv_heads, layers[0].num_kv_heads, unturned, unturned, None)

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Mapping[str, Any]
    ) -> Tensor:
        """What it is told beside the heads was seen in the survey."""
        (layer, cache), step = next(self._layers), self._step
        parts = [part.transpose(1, 2) for part in (query, key, value)]
        missing = [self._head_dim - part.shape[-1] for part in parts]
        padded = [pad(part, (0, lack)) if lack else part for part, lack in zip(parts, missing, strict=True)]
        heads = torch.cat(padded, dim=2)[0]
        queries = step.backend.store(heads, self._turn, cache, step.attention)
        scale = layer.scale * math.sqrt(self._head_dim)  # the backend divides by this root
        if not math.isclose(scale, 1.0):
            queries = queries * scale
        attended = step.backend.attend(queries, cache, step.attention, layer.scoring)
        return attended[None, ..., : layer.value_dim]

    def mask(self, mask_function: Any, device: Any) -> None:
        """There are none in a step."""
