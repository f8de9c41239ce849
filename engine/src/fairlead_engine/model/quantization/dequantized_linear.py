"""Products with weights that are decoded for each product: half or a quarter of the memory, at the floats' speed.

Decoding costs as much for one row as for a thousand, so it is for many rows, and for where nothing faster exists.
"""

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight

PART_ELEMENTS = 2**22
"""Of the weight, decoded at a time: 8 MiB in bfloat16, which caches hold between its being written and read."""
_E4M3_BITS = 0x87F0 - 2**16
"""Sign, and the seven other bits of a float8_e4m3fn below the four highest of a bfloat16's exponent."""
_E4M3_BIAS = 2.0 ** (127 - 7)
"""Of their exponents, bfloat16's over float8_e4m3fn's."""


class DequantizedLinear:
    """Decodes a few million elements at a time, on any device."""

    copies_weight = True

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._weight = weight
        self._bias = bias
        self._scales = weight.scales.to(dtype)
        self.weight_bytes = weight.values.nbytes + weight.scales.nbytes + self._scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        product = self.product(x)
        return product if self._bias is None else product.add_(self._bias)

    def product(self, x: Tensor) -> Tensor:
        """Without the bias: a new tensor [rows, out_features]."""
        weight = self._weight
        num_rows = max(1, PART_ELEMENTS // weight.values.shape[1])
        parts = zip(torch.split(weight.values, num_rows), torch.split(self._scales, num_rows), strict=True)
        products = [self._part(x, values, scales) for values, scales in parts]
        return products[0] if len(products) == 1 else torch.cat(products, dim=-1)

    def _part(self, x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
        decoded = decode(values, x.dtype)
        if self._weight.has_scale_per_row:  # every value is exact in bfloat16, so scaling can wait
            return functional.linear(x, decoded).mul_(scales.view(-1))
        columns = values.shape[1]
        spread = scales.repeat_interleave(self._weight.group_size, dim=1)[:, :columns]
        return functional.linear(x, decoded.mul_(spread))


def decode(values: Tensor, dtype: torch.dtype) -> Tensor:
    """int8 or float8_e4m3fn values as a new tensor in `dtype`, without loss.

    torch converts an 8-bit float on a CPU in 4 ns, so there its bits are put where a bfloat16 has them.
    """
    if values.dtype is not torch.float8_e4m3fn or values.device.type != "cpu":
        return values.to(dtype)
    bits = values.view(torch.int8).to(torch.int16).bitwise_left_shift_(4).bitwise_and_(_E4M3_BITS)
    return bits.view(torch.bfloat16).mul_(_E4M3_BIAS).to(dtype)
