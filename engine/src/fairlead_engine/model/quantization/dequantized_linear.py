"""Products with weights decoded for each product: half or a quarter of the memory, at the speed of floats.

Decoding costs as much for one row as for a thousand: it suits many rows, or devices without anything faster.
"""

import logging
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.rounded_rows import RowFormat, decode, rounded_blocks, rounded_rows
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight

logger = logging.getLogger(__name__)

PART_ELEMENTS = 2**22
"""Elements of the weight decoded at a time: 8 MiB in bfloat16, which stay in the caches until their use."""


class DequantizedLinear:
    """Decodes a few million elements at a time, on any device."""

    copies_weight = True

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._weight = weight
        self._bias = bias
        self._scales = weight.scales.to(dtype)
        self.weight_bytes = weight.values.nbytes + weight.scales.nbytes + self._scales.nbytes
        if weight.offsets is not None:
            self.weight_bytes += weight.offsets.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        product = self.product(x)
        return product if self._bias is None else product.add_(self._bias)

    def product(self, x: Tensor) -> Tensor:
        """Without the bias: a new tensor [rows, out_features]."""
        values = self._weight.values
        num_rows = max(1, PART_ELEMENTS // values.shape[1])
        firsts = range(0, max(1, len(values)), num_rows)
        products = [self._part(x, slice(first, first + num_rows)) for first in firsts]
        return products[0] if len(products) == 1 else torch.cat(products, dim=-1)

    def _part(self, x: Tensor, rows: slice) -> Tensor:
        weight = self._weight
        if weight.offsets is not None:  # the sum may be much less than what is summed: it is rounded, and not they
            return functional.linear(x, weight.decoded(rows, torch.float32).to(x.dtype))
        decoded, scales = decode(weight.values[rows], x.dtype), self._scales[rows]
        if weight.has_scale_per_row:  # every value is exact in bfloat16, so scaling can wait
            return functional.linear(x, decoded).mul_(scales.view(-1))
        return functional.linear(x, decoded.mul_(weight.spread(scales)))


class DecodedLinear(DequantizedLinear):
    """Rounds activations as 8-bit products do, then decodes both sides: for devices without such products."""

    row_format: ClassVar[RowFormat]

    def product(self, x: Tensor) -> Tensor:
        if not x.numel():
            return super().product(x)
        if not self._weight.has_scale_per_row:
            return super().product(rounded_blocks(x, self._weight.group_size, self.row_format))
        rows, scales = rounded_rows(x, self.row_format)
        return super().product(decode(rows, x.dtype)).mul_(scales)


@cache
def tell_decoding(name: str, device: str, why: str) -> None:
    """Logs once that weights of the format are decoded for each product on the device."""
    logger.info("%s: weights are decoded for each product on %s, since there is none of %s", name, device, why)
