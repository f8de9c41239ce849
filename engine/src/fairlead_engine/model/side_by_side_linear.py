"""Projections of one input that are no single product, since their weights are stored differently."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fairlead_engine.model.linear import Linear


class SideBySideLinear:
    """Computes one after the other; their outputs lie side by side, as those of one product would."""

    copies_weight = True

    def __init__(self, parts: Sequence[Linear]) -> None:
        self._parts = tuple(parts)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self._parts], dim=-1)
