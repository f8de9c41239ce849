"""8-bit floats (e4m3, arXiv 2209.05433) on both sides. Weights are scaled by output channel or in blocks, activations
by token, or by token and as many columns as a block has, as they come."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fairlead_engine.model.product_trial import is_right
from fairlead_engine.model.quantization.dequantized_linear import DequantizedLinear, decode, tell_decoding
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight, quantize_weight
from fairlead_engine.model.quantization.scaled_rows import scaled_rows
from fairlead_engine.model.quantization.weight_format import QuantizedLinear, Rounding

LARGEST = 448.0
"""The largest number that e4m3 has."""
_ALIGNMENT = 16
"""What the sizes of a product's operands must be multiples of on a GPU."""


@dataclass(frozen=True, slots=True)
class Fp8:
    """For GPUs that multiply 8-bit floats; elsewhere weights are decoded for each product."""

    name = "fp8"

    @property
    def rounding(self) -> Rounding:
        return _rounding

    def quantize(self, weight: Tensor) -> QuantizedWeight:
        return quantize_weight(weight, torch.float8_e4m3fn, largest=LARGEST, low=-LARGEST, high=LARGEST)

    def linear(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> QuantizedLinear:
        values = weight.values
        fits = weight.has_scale_per_row and not any(size % _ALIGNMENT for size in values.shape)
        if fits and dtype is torch.bfloat16 and values.is_cuda and can_multiply_fp8(values.device):
            return ScaledFp8Linear(weight, bias, dtype)
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
        rows, scales = scaled_rows(x, LARGEST)
        product = torch._scaled_mm(_rounded(rows), self._values.t(), scales, self._scales, out_dtype=x.dtype)
        return product if self._bias is None else product.add_(self._bias)


class DecodedFp8Linear(DequantizedLinear):
    """The same arithmetic anywhere: activations are rounded to 8 bits, both sides decoded, and multiplied as floats."""

    def product(self, x: Tensor) -> Tensor:
        if not x.numel():
            return super().product(x)
        rows, scales = _rounding(x, None if self._weight.has_scale_per_row else self._weight.group_size)
        if scales is None:
            return super().product(rows)
        return super().product(decode(rows, x.dtype)).mul_(scales)


def _rounding(x: Tensor, size: int | None) -> tuple[Tensor, Tensor | None]:
    """Each row to 8-bit floats; or each so many columns of it, and back."""
    if size is None:
        rows, scales = scaled_rows(x, LARGEST)
        return _rounded(rows), scales
    columns = x.shape[1]
    # The last block of columns may be narrower; zeros beside it change no scale.
    blocks = torch.nn.functional.pad(x, (0, -columns % size)).view(-1, size)
    rows, scales = scaled_rows(blocks, LARGEST)
    rounded = decode(_rounded(rows), torch.float32).mul_(scales)
    return rounded.view(len(x), -1)[:, :columns].to(x.dtype), None


def _rounded(x: Tensor) -> Tensor:
    """To the nearest 8-bit float; what lies outside their range by a rounding error, to the last of them."""
    return x.clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn)


@cache
def can_multiply_fp8(device: torch.device) -> bool:
    """Whether the device has the product: it is tried, since it takes a GPU and a build of torch that both know it."""
    one = torch.ones(32, 32, device=device)
    weight = QuantizedWeight(one.to(torch.float8_e4m3fn), one[:, :1].contiguous(), 32)
    return is_right(
        lambda: ScaledFp8Linear(weight, None, torch.bfloat16)(one.to(torch.bfloat16)).float(),
        one @ one,
        otherwise=f"{device} cannot multiply 8-bit floats, decoding weights",
    )
