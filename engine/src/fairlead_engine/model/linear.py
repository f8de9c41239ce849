"""Matrix products with weights: the plain product, and oneDNN's with the weight packed once into its own layout.

Packing wins on CPUs because oneDNN otherwise reorders the weight inside every call: 10-25 % on a product of 32 rows in
bfloat16 (3072 x 512: 239 us packed against 299 us plain, one thread, AVX512-BF16), more in float32.
"""

import os
from collections.abc import Sequence
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.model.product_trial import is_right, most_skinny_rows
from fairlead_engine.model.shard import Shard

NUM_SHAPES = 128
"""Bound on compiled routines in oneDNN and in torch: one for every number of rows and shape of weight. The default,
1024, is reached within the hour by prompts of all lengths, with some 500 MiB. A decode needs as many as there are
shapes of weights; compiling anew costs less than a prefill."""
# Both are read when the first product is computed; neither library has a call for it.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(NUM_SHAPES))
os.environ.setdefault("LRU_CACHE_CAPACITY", str(NUM_SHAPES))


class Linear(Protocol):
    """x [rows, in_features] → [rows, out_features], bias included."""

    copies_weight: bool
    """Whether the layer holds a copy of its original weight."""

    def __call__(self, x: Tensor) -> Tensor: ...


class PlainLinear:
    """Through torch, on any device."""

    copies_weight = False

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)


class PackedLinear:
    """Through oneDNN on a CPU. Drop the original weight to free its memory."""

    copies_weight = True

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return product


class SkinnyLinear:
    """Through a kernel of ours for few rows, through torch for more: on CUDA."""

    copies_weight = False

    def __init__(self, weight: Tensor, bias: Tensor | None, most_rows: int) -> None:
        """`most_rows`: bound of the kernel's use, at most `MOST_ROWS`."""
        from fairlead_engine.kernels.skinny_product_kernel import skinny_product  # Triton is needed on CUDA alone

        self._weight = weight
        self._bias = bias
        self._most_rows = most_rows
        self._product = skinny_product

    def __call__(self, x: Tensor) -> Tensor:
        product = self._product if len(x) <= self._most_rows else functional.linear
        return product(x, self._weight, self._bias)


class SideBySideLinear:
    """Differently stored projections of one input: computed one after the other, with outputs side by side."""

    copies_weight = True

    def __init__(self, parts: Sequence[Linear]) -> None:
        self._parts = tuple(parts)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self._parts], dim=-1)


class SummedLinear:
    """A rank's product with its part of the inputs, summed over the ranks; the bias comes after."""

    copies_weight = False

    def __init__(self, part: Linear, bias: Tensor | None, shard: Shard) -> None:
        self._part = part
        self._bias = bias
        self._shard = shard

    def __call__(self, x: Tensor) -> Tensor:
        product = self._shard.sum(self._part(x))
        return product if self._bias is None else product.add_(self._bias)


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The fastest linear layer for this weight [out_features, in_features] on its device."""
    if weight.device.type == "cpu" and can_pack(weight.dtype):
        return PackedLinear(weight, bias)
    most_rows = most_skinny_rows(weight)
    return SkinnyLinear(weight, bias, most_rows) if most_rows else PlainLinear(weight, bias)


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build and this CPU run packed products in `dtype` correctly. The operators are not torch's public
    interface: a small product is tried once; version numbers prove nothing."""
    weight = (torch.arange(1024, dtype=torch.float32) % 7 - 3).view(32, 32).to(dtype)
    x = (torch.arange(64, dtype=torch.float32) % 5 - 2).view(2, 32).to(dtype)
    otherwise = f"oneDNN cannot pack {dtype} weights here, using plain products"
    return is_right(lambda: PackedLinear(weight)(x), functional.linear(x, weight), otherwise=otherwise)
