"""What a format of quantised weights brings."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from fairlead_engine.model.linear import Linear
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight

Rounding = Callable[[Tensor, int | None], tuple[Tensor, Tensor | None]]
"""What becomes of rows [rows, in_features] before a product whose weight has scales for so many columns each, or for
whole rows (None): rows in 8 bits with their scales, float32 [rows, 1], or without scales in the format they came in."""


class QuantizedLinear(Linear, Protocol):
    """A linear layer that knows what its weight takes."""

    weight_bytes: int
    """Memory of values and scales, without the bias."""


class WeightFormat(Protocol):
    """How linear layers' weights are rounded, and multiplied with. Two of a kind are equal and hash alike."""

    @property
    def name(self) -> str:
        """As the setting `quantization` spells it."""
        ...

    @property
    def rounding(self) -> Rounding | None:
        """None = rows stay as they are."""
        ...

    def quantize(self, weight: Tensor) -> QuantizedWeight:
        """Rounds a weight [out_features, in_features] of any floating dtype."""
        ...

    def linear(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> QuantizedLinear:
        """The fastest layer for this weight on its device; it takes and gives rows in `dtype`."""
        ...
