"""8-bit floats (e4m3, arXiv 2209.05433) on both sides. Weights are scaled by output channel or in blocks, activations
during the step: by token, or by token and block of columns."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fairlead_engine.kernels.rounded_rows import E4M3_ROWS, rounded_rows
from fairlead_engine.model.product_trial import is_right
from fairlead_engine.model.quantization.coded_linear import coded_linear, faster_for_few_rows
from fairlead_engine.model.quantization.dequantized_linear import DecodedLinear, tell_decoding
from fairlead_engine.model.quantization.quantized_weight import QuantizedLinear, QuantizedWeight, quantize_weight

_ALIGNMENT = 16
"""Divisor of the sizes of a product's operands on a GPU."""


@dataclass(frozen=True, slots=True)
class Fp8:
    """For GPUs that multiply 8-bit floats; elsewhere weights are decoded for each product."""

    name = "fp8"
    row_format = E4M3_ROWS

    def quantize(self, weight: Tensor) -> QuantizedWeight:
        largest = E4M3_ROWS.largest
        return quantize_weight(weight, E4M3_ROWS.dtype, largest=largest, low=-largest, high=largest)

    def linear(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> QuantizedLinear:
        values = weight.values
        fits = weight.has_scale_per_row and not any(size % _ALIGNMENT for size in values.shape)
        if fits and dtype is torch.bfloat16 and values.is_cuda and can_multiply_fp8(values.device):
            return faster_for_few_rows(ScaledFp8Linear(weight, bias, dtype), weight, bias, dtype, E4M3_ROWS)
        coded = coded_linear(weight, bias, dtype, E4M3_ROWS)
        if coded is not None:
            return coded
        size = "a scale for each output" if weight.has_scale_per_row else f"groups of {weight.group_size}"
        tell_decoding(self.name, values.device.type, f"{dtype} with 8-bit floats in {size}")
        return DecodedFp8Linear(weight, bias, dtype)


class ScaledFp8Linear:
    """Through torch's product of 8-bit floats with scales for rows and columns, in bfloat16."""

    copies_weight = True

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._values = weight.values
        self._scales = weight.scales.view(1, -1)
        self._bias = bias
        self.weight_bytes = weight.values.nbytes + weight.scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        rows, scales = rounded_rows(x, E4M3_ROWS)
        product = torch._scaled_mm(rows, self._values.t(), scales, self._scales, out_dtype=x.dtype)
        return product if self._bias is None else product.add_(self._bias)


class DecodedFp8Linear(DecodedLinear):
    """On any device."""

    row_format = E4M3_ROWS


@cache
def can_multiply_fp8(device: torch.device) -> bool:
    """Whether the device has the product: tried, since both the GPU and torch's build must have it."""
    one = torch.ones(32, 32, device=device)
    weight = QuantizedWeight(one.to(torch.float8_e4m3fn), one[:, :1].contiguous(), 32)
    return is_right(
        lambda: ScaledFp8Linear(weight, None, torch.bfloat16)(one.to(torch.bfloat16)).float(),
        one @ one,
        otherwise=f"{device} cannot multiply 8-bit floats, decoding weights",
    )
