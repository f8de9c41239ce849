"""Products with weights that stay as they are stored until a kernel decodes them on its way: on CUDA."""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.decoded_product import CodedWeight, decoded, decoded_product, packed, rounded
from fairlead_engine.kernels.dispatch import has_kernels
from fairlead_engine.kernels.rounded_rows import RowFormat
from fairlead_engine.model.product_trial import Product, is_right, kept_rows
from fairlead_engine.model.quantization.quantized_weight import QuantizedLinear, QuantizedWeight

MOST_ROWS = 512
"""Rows up to which the kernel multiplies; for more, the weight is decoded into memory."""
_PART_ELEMENTS = 2**24
"""Elements of the weight decoded at a time: 32 MiB in 16 bits."""


class CodedLinear:
    """Through the kernel that decodes, for many rows through torch's product with parts of the decoded weight."""

    copies_weight = True

    def __init__(self, weight: CodedWeight, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias
        self.weight_bytes = weight.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) <= MOST_ROWS:
            return decoded_product(x, self._weight, self._bias)
        num_outputs, rows = len(self._weight.values), rounded(x, self._weight)
        size = max(1, _PART_ELEMENTS // max(1, x.shape[1]))
        parts = [slice(first, first + size) for first in range(0, num_outputs, size)]
        products = [functional.linear(rows, decoded(self._weight, part, x.dtype)) for part in parts]
        product = products[0] if len(products) == 1 else torch.cat(products, dim=-1)
        return product if self._bias is None else product.add_(self._bias)


def coded_linear(
    weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype, row_format: RowFormat | None, num_bits: int = 8
) -> CodedLinear | None:
    """The layer for this weight on its device, whose numbers have `num_bits`; None = the kernel does not take it."""
    if not has_kernels(weight.values) or weight.groups is not None:
        return None
    coded = coded_weight(weight, row_format, num_bits)
    if not takes(coded) or not can_multiply(weight.values.device, dtype, coded.values.dtype):
        return None
    return CodedLinear(coded, bias)


class FewRowsLinear:
    """A layer for few rows, and another with the same weight for more."""

    copies_weight = True

    def __init__(self, few: QuantizedLinear, many: QuantizedLinear, most_rows: int) -> None:
        """`most_rows`: of few."""
        self._few = few
        self._many = many
        self._most_rows = most_rows
        self.weight_bytes = many.weight_bytes

    def __call__(self, x: Tensor) -> Tensor:
        return self._few(x) if len(x) <= self._most_rows else self._many(x)


def faster_for_few_rows(
    linear: QuantizedLinear, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype, row_format: RowFormat
) -> QuantizedLinear:
    """The layer with its weight of 8-bit numbers through the kernel that decodes, for as few rows as that is faster
    for."""
    coded = coded_linear(weight, bias, dtype, row_format)
    if coded is None:
        return linear
    outputs, inputs = weight.values.shape
    kind = torch.empty(1, inputs, dtype=dtype, device=weight.values.device)
    most = kept_rows(f"a product with {weight.values.dtype}", _of(coded), _of(linear), kind, outputs)
    return FewRowsLinear(coded, linear, most) if most else linear


def _of(linear: QuantizedLinear) -> Product:
    return lambda x, _: linear(x)


def coded_weight(weight: QuantizedWeight, row_format: RowFormat | None, num_bits: int) -> CodedWeight:
    """In the kernel's layout."""
    from fairlead_engine.kernels.decoded_product_kernel import MOST_ARRIVALS  # Triton is needed on CUDA alone

    is_packed = num_bits == 4 and weight.values.shape[1] % 32 == 0
    return CodedWeight(
        packed(weight.values) if is_packed else weight.values,
        _by_group(weight.scales),
        weight.group_size,
        None if weight.offsets is None else _by_group(weight.offsets),
        row_format,
        torch.zeros(MOST_ARRIVALS, dtype=torch.int32, device=weight.values.device),
    )


def _by_group(scales: Tensor) -> Tensor:
    """[out_features, groups] → [groups, out_features], in 16 bits where they lose nothing."""
    halves = scales.half()
    return (halves if halves.float().equal(scales) else scales).t().contiguous()


def takes(weight: CodedWeight) -> bool:
    """Whether the kernel takes the weight's groups."""
    from fairlead_engine.kernels.decoded_product_kernel import can_multiply  # Triton is needed on CUDA alone

    return can_multiply(weight)


@cache
def can_multiply(device: torch.device, dtype: torch.dtype, stored: torch.dtype) -> bool:
    """Whether the kernel computes a small example correctly on the device: 8-bit floats need a GPU that has them."""
    from fairlead_engine.kernels.rounded_rows import E4M3_ROWS

    numbers = (torch.arange(64 * 128, device=device) % 7 - 3).view(64, 128)
    values = numbers.to(torch.int8)
    kind = packed(values) if stored is torch.uint8 else values.to(stored)
    weight = CodedWeight(
        kind, numbers.new_ones(2, 64).float(), 64, None, E4M3_ROWS if stored.is_floating_point else None
    )
    x = torch.where(numbers[:3] > 0, 7, -7).to(dtype)  # over 448 a power of two
    return is_right(
        lambda: decoded_product(x, weight),
        (x.double() @ numbers.double().t()).to(dtype),
        otherwise=f"{device} cannot multiply {dtype} with {stored}, decoding weights",
    )
