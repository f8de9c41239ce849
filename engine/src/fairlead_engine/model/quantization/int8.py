"""8-bit integer weights, scaled by output channel: alone, or (W8A8) with activations scaled by token during the step.

(LLM.int8, arXiv 2208.07339, and SmoothQuant, arXiv 2211.10438, without their treatment of outliers.)
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fairlead_engine.kernels.rounded_rows import INT8_ROWS, rounded_rows
from fairlead_engine.kernels.scaled_product import scaled_product
from fairlead_engine.model.product_trial import is_right
from fairlead_engine.model.quantization.coded_linear import coded_linear
from fairlead_engine.model.quantization.dequantized_linear import DecodedLinear, DequantizedLinear, tell_decoding
from fairlead_engine.model.quantization.quantized_weight import QuantizedLinear, QuantizedWeight, quantize_weight

_ZERO = 128
"""oneDNN's 0 of unsigned activations. Signed activations fall back on a loop that is 300 times slower on CPUs with
AVX512-VNNI and no AMX."""
_CUDA_ROWS = 17
"""Fewest that cuBLAS multiplies."""


@dataclass(frozen=True, slots=True)
class Int8:
    """Half the memory of bfloat16, and on CPUs with VNNI 0.6 of its time: 3072 x 1024 on one thread takes 0.25, 0.35,
    0.73 and 4.9 ms for 1, 8, 32 and 256 rows, in bfloat16 0.43, 0.57, 1.2 and 7.6. On CPUs without VNNI weights are
    decoded: with AVX2 alone 1.1, 2.3, 6.1 and 23 ms, floats 0.4, 1.8, 4.9 and 25, and torch's product of signed
    integers 2.5, 16, 79 and 610."""

    name = "int8"
    row_format = INT8_ROWS

    def quantize(self, weight: Tensor) -> QuantizedWeight:
        largest = INT8_ROWS.largest
        return quantize_weight(weight, torch.int8, largest=largest, low=-largest, high=largest)

    def linear(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> QuantizedLinear:
        if weight.values.device.type != "cpu":
            return Int8Linear(weight, bias, dtype)
        if can_pack_int8():
            return PackedInt8Linear(weight, bias, dtype)
        tell_decoding(self.name, "cpu", "8-bit integers that never overflows")
        return DecodedInt8Linear(weight, bias, dtype)


class DecodedInt8Linear(DecodedLinear):
    """On any device; sums below 2^24 are exact in float32."""

    row_format = INT8_ROWS


class Int8Linear:
    """Through torch's product of signed integers, on any device."""

    copies_weight = True

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._values = weight.values
        self._scales = weight.scales.view(-1)
        self._bias = bias
        self.weight_bytes = weight.values.nbytes + weight.scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        values, scales = rounded_rows(x, INT8_ROWS, _CUDA_ROWS if x.is_cuda else 0)
        sums = torch._int_mm(values, self._values.t())
        return scaled_product(sums, scales, self._scales, self._bias, x.dtype)


class PackedInt8Linear:
    """Through oneDNN on a CPU, with the weight packed once into its layout. Drop the original to free its memory."""

    copies_weight = True

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._packed = torch.ops.onednn.qlinear_prepack(weight.values, None)
        self._scales = weight.scales.view(-1)
        self._zeros = torch.zeros(len(weight.values), dtype=torch.int64)
        self._bias = bias
        self.weight_bytes = weight.values.nbytes + weight.scales.nbytes + self._zeros.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        if not len(x):
            return x.new_empty(0, len(self._scales))
        rows, scales = rounded_rows(x, INT8_ROWS)
        values = rows.view(torch.uint8).bitwise_xor_(_ZERO)  # torch is slow from float to uint8
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            values, 1.0, _ZERO, self._packed, self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        product.mul_(scales)
        return (product if self._bias is None else product.add_(self._bias)).to(x.dtype)


@cache
def can_pack_int8() -> bool:
    """Whether oneDNN multiplies 8-bit integers here without overflow of a sum of two products, which CPUs without VNNI
    have. The operators are not torch's public interface: a product of the largest numbers is tried once."""
    signs = torch.where(torch.arange(64 * 32).view(64, 32) % 3 == 0, -1, 1)
    weight = QuantizedWeight((127 * signs).to(torch.int8), torch.ones(64, 1), 32)
    x = torch.full((2, 32), 127.0)
    return is_right(
        lambda: PackedInt8Linear(weight, None, x.dtype)(x),
        x @ weight.dequantized().t(),
        otherwise="oneDNN cannot multiply 8-bit integers here, decoding weights",
    )


_LARGEST = 127.0
_MOST_ROWS = 4
"""Most rows for which torch's product of bfloat16 with integers is faster than decoding the weight: 3072 x 1024 on one
thread with AVX512 takes 0.34, 0.55, 0.85 and 3.1 ms for 1, 4, 8 and 32 rows, after decoding 0.65, 0.71, 0.85 and
1.5."""


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
        coded = coded_linear(weight, bias, dtype, None)
        if coded is not None:
            return coded
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
    """Whether torch has the product here and computes a small example correctly; it is not torch's public interface."""
    weight = QuantizedWeight((torch.arange(64 * 64) % 7 - 3).view(64, 64).to(torch.int8), torch.ones(64, 1), 64)
    x = (torch.arange(2 * 64) % 5 - 2).view(2, 64).to(torch.bfloat16)
    return is_right(
        lambda: MixedInt8Linear(weight, None, x.dtype)(x),
        x @ weight.dequantized(x.dtype).t(),
        otherwise="torch cannot multiply bfloat16 with 8-bit integers here, decoding weights",
    )
