"""8-bit integer weights, scaled by output channel; activations stay as they are."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fairlead_engine.model.product_trial import is_right
from fairlead_engine.model.quantization.dequantized_linear import DequantizedLinear, tell_decoding
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight, quantize_weight
from fairlead_engine.model.quantization.weight_format import QuantizedLinear

_LARGEST = 127.0
_MOST_ROWS = 4
"""That torch's product of bfloat16 with integers is faster for than decoding the weight: 3072 x 1024 on one thread with
AVX512 takes 0.34, 0.55, 0.85 and 3.1 ms for 1, 4, 8 and 32 rows, after decoding 0.65, 0.71, 0.85 and 1.5."""


@dataclass(frozen=True, slots=True)
class Int8WeightOnly:
    """Half the memory of bfloat16."""

    name = "int8-weight-only"
    row_format = None

    def quantize(self, weight: Tensor) -> QuantizedWeight:
        return quantize_weight(weight, torch.int8, largest=_LARGEST, low=-_LARGEST, high=_LARGEST)

    def linear(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> QuantizedLinear:
        fits = weight.has_scale_per_row and weight.offsets is None and dtype is torch.bfloat16
        if fits and weight.values.device.type == "cpu" and can_multiply_mixed():
            return MixedInt8Linear(weight, bias, dtype)
        groups = "a scale for each output" if fits or weight.has_scale_per_row else f"groups of {weight.group_size}"
        tell_decoding(self.name, weight.values.device.type, f"{dtype} with 8-bit integers in {groups}")
        return DequantizedLinear(weight, bias, dtype)


class MixedInt8Linear(DequantizedLinear):
    """Through torch's product of bfloat16 with integers for few rows, on a CPU."""

    def product(self, x: Tensor) -> Tensor:
        if 0 < len(x) <= _MOST_ROWS:
            return torch._weight_int8pack_mm(x, self._weight.values, self._scales.view(-1))
        return super().product(x)


@cache
def can_multiply_mixed() -> bool:
    """Whether torch has the product here and gets a small one right, since it is not its public interface."""
    weight = QuantizedWeight((torch.arange(64 * 64) % 7 - 3).view(64, 64).to(torch.int8), torch.ones(64, 1), 64)
    x = (torch.arange(2 * 64) % 5 - 2).view(2, 64).to(torch.bfloat16)
    return is_right(
        lambda: MixedInt8Linear(weight, None, x.dtype)(x),
        x @ weight.dequantized(x.dtype).t(),
        otherwise="torch cannot multiply bfloat16 with 8-bit integers here, decoding weights",
    )
