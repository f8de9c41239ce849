"""Keys or values in a cache: floats, or 8 bits for each number and a scale for each head.

A head of a token is scaled by its own largest magnitude, once, at its storage: the stored head depends on the token
alone, not on the rest of its step or block.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

KV_DTYPES: dict[str, torch.dtype | None] = {"auto": None, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
"""As `--kv-cache-dtype` spells them; None = what keys and values are computed in."""
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The stored number of a head's largest magnitude; other formats have no scales."""
SMALLEST_SCALE = 2.0**-126
"""Of a head of zeros too: float32's smallest number of full precision."""


class StoredHeads(NamedTuple):
    """Heads of many tokens."""

    numbers: Tensor
    """[..., head_dim]."""
    scales: Tensor | None
    """float32 [...]: factor of each head's numbers; None = floats."""

    @classmethod
    def room(cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> "StoredHeads":
        """Uninitialised memory for heads of this shape, head_dim last; the system provides it at first use."""
        scales = torch.empty(shape[:-1], dtype=torch.float32, device=device) if dtype in LARGEST else None
        return cls(torch.empty(shape, dtype=dtype, device=device), scales)

    @property
    def nbytes(self) -> int:
        return self.numbers.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def put(self, dim: int, places: Tensor, heads: Tensor) -> None:
        """Stores float heads at `places` int64 [n] of one dimension; the other dimensions are equal."""
        if self.scales is None:
            self.numbers.index_copy_(dim, places, heads)
            return
        numbers, scales = quantize_heads(heads, self.numbers.dtype)
        self._bits.index_copy_(dim, places, numbers.view(torch.uint8))
        self.scales.index_copy_(dim, places, scales)

    def move(self, dim: int, sources: Tensor, targets: Tensor, into: "StoredHeads | None" = None) -> None:
        """Copies stored heads at `sources` int64 [n] of one dimension to `targets`. `into`: heads of the same shape but
        for the dimension, on any device; None = itself."""
        into = into or self
        for found, copies in ((self._bits, into._bits), (self.scales, into.scales)):
            if found is not None and copies is not None:
                picked = found.index_select(dim, sources.to(found.device)).to(copies.device)
                copies.index_copy_(dim, targets.to(copies.device), picked)

    @property
    def _bits(self) -> Tensor:
        """A view that torch can index on a CPU, unlike 8-bit floats."""
        return self.numbers.view(torch.uint8) if self.scales is not None else self.numbers

    def flatten(self, first: int, last: int) -> "StoredHeads":
        """A view with the dimensions from `first` to `last`, all before head_dim, as one."""
        scales = None if self.scales is None else self.scales.flatten(first, last)
        return StoredHeads(self.numbers.flatten(first, last), scales)

    def unflatten(self, dim: int, size: int) -> "StoredHeads":
        """A view with one dimension, before head_dim, divided into two, the second of `size`."""

        def divided(tensor: Tensor) -> Tensor:
            return tensor.view(*tensor.shape[:dim], -1, size, *tensor.shape[dim + 1 :])

        return StoredHeads(divided(self.numbers), None if self.scales is None else divided(self.scales))

    def narrow(self, dim: int, start: int, length: int) -> "StoredHeads":
        """A view of consecutive places of one dimension."""
        scales = None if self.scales is None else self.scales.narrow(dim, start, length)
        return StoredHeads(self.numbers.narrow(dim, start, length), scales)

    def gather(self, dim: int, places: Tensor) -> "StoredHeads":
        """A copy of the heads at `places` int64 [n] of one dimension."""
        scales = None if self.scales is None else self.scales.index_select(dim, places)
        return StoredHeads(self.numbers.index_select(dim, places), scales)

    def floats(self, dtype: torch.dtype) -> Tensor:
        """The heads as floats [..., head_dim], rounded if stored in 8 bits."""
        if self.scales is None:
            return self.numbers
        return _wide(self.numbers).mul_(self.scales.unsqueeze(-1)).to(dtype)


def quantize_heads(heads: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """heads [..., head_dim], floats → numbers of the same shape in `dtype`, and scales float32 [...]. Rounded to
    nearest. A head with a number that is not finite has the scale NaN, and is NaN as a whole."""
    wide = heads.float()
    highest = wide.abs().amax(-1)
    # A division by a number is a product with its inverse on CUDA and none on a CPU.
    scales = (highest * (1 / LARGEST[dtype])).clamp_min_(SMALLEST_SCALE)
    scales.masked_fill_(~highest.isfinite(), float("nan"))
    numbers = wide / scales.unsqueeze(-1)
    return (numbers.round_() if dtype == torch.int8 else numbers).to(dtype), scales


def _wide(numbers: Tensor) -> Tensor:
    """A copy in float32. On a CPU 8-bit floats are looked up, five times faster than torch's cast."""
    if numbers.dtype == torch.int8 or numbers.is_cuda:
        return numbers.float()
    codes = numbers.contiguous().view(torch.uint8)
    return _each_e4m3().index_select(0, codes.flatten().int()).view(numbers.shape)


@cache
def _each_e4m3() -> Tensor:
    """float32 [256]: the value of each code."""
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
