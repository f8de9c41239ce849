"""What a format of quantised weights brings."""

from typing import Protocol

import torch
from torch import Tensor

from fairlead_engine.kernels.rounded_rows import RowFormat
from fairlead_engine.model.linear import Linear
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight


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
    def row_format(self) -> RowFormat | None:
        """What rows are rounded to before a product: whole, or as many columns together as have one scale of a weight
        of floats; None = they stay as they are."""
        ...

    def quantize(self, weight: Tensor) -> QuantizedWeight:
        """Rounds a weight [out_features, in_features] of any floating dtype."""
        ...

    def linear(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> QuantizedLinear:
        """The fastest layer for this weight on its device; it takes and gives rows in `dtype`."""
        ...
