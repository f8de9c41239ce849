"""GGUF's numbers below four bits: IQ1, IQ2 and IQ3.

A code names a point of a grid, i.e. four or eight values at once; signs are stored beside the codes. The grids are
tables of ggml's, which its package `gguf` has: the package is imported when the first such block is decoded.
"""

from functools import cache
from importlib import import_module

import torch
from torch import Tensor

from fairlead_engine.model.gguf_packed import Decoded, half, nibble_pairs, split

_SEVENS = (0, 7, 14, 21)
"""Shifts of four signs' codes in a word."""


@cache
def _grid(name: str) -> Tensor:
    """int8 [codes, 4 or 8]: values of a type's codes."""
    kind = getattr(import_module("gguf.quants"), name)
    kind.init_grid()
    return torch.from_numpy(kind.grid[0, 0].astype("int8"))


def _values(name: str, codes: Tensor) -> Tensor:
    """int8 [blocks, 32, 8] of codes [blocks, 32 or 64]."""
    return _grid(name)[codes.long()].view(len(codes), -1, 8)


def _signs(packed: Tensor) -> Tensor:
    """int8 [..., 8], 1 or -1, of bytes [...]."""
    return 1 - 2 * (split(packed, *range(8)) & 1).to(torch.int8)


def _even_signs(codes: Tensor) -> Tensor:
    """int8 [..., 8] of seven bits each, [...]: the eighth sign makes the number of minuses even."""
    bits = split(codes & 127, *range(7)) & 1
    return 1 - 2 * torch.cat((bits, bits.sum(-1, keepdim=True) & 1), dim=-1).to(torch.int8)


def _shorts(packed: Tensor) -> Tensor:
    """int32 [blocks, bytes / 2]."""
    return packed[:, ::2].int() | (packed[:, 1::2].int() << 8)


def _words(packed: Tensor) -> Tensor:
    """int32 [blocks, bytes / 4]; the highest bit is the sign."""
    return packed.contiguous().view(torch.int32)


def _of_word(words: Tensor) -> tuple[Tensor, Tensor]:
    """Scales without their factor, [blocks, 8], and signs, [blocks, 32, 8], of words [blocks, 8]."""
    return 0.5 + (words >> 28 & 15), _even_signs(split(words, *_SEVENS)).flatten(1, 2)


def iq2_xxs(blocks: Tensor) -> Decoded:
    words = _words(blocks[:, 2:66])
    codes = blocks[:, 2:66].reshape(-1, 8, 2, 4)[:, :, 0].flatten(1)
    scales, signs = _of_word(words[:, 1::2])
    return Decoded((_values("IQ2_XXS", codes) * signs).flatten(1), 0.25 * half(blocks, 0) * scales, None)


def iq2_xs(blocks: Tensor) -> Decoded:
    codes = _shorts(blocks[:, 2:66])
    values = _values("IQ2_XS", codes & 511) * _even_signs(codes >> 9)
    return Decoded(values.flatten(1), _fine_scales(blocks, 66), None)


def iq2_s(blocks: Tensor) -> Decoded:
    high = split(blocks[:, 66:74], 0, 2, 4, 6).flatten(1) & 3
    values = _values("IQ2_S", blocks[:, 2:34].int() | (high.int() << 8)) * _signs(blocks[:, 34:66])
    return Decoded(values.flatten(1), _fine_scales(blocks, 74), None)


def _fine_scales(blocks: Tensor, at: int) -> Tensor:
    """float32 [blocks, 16] of eight bytes there."""
    return 0.25 * half(blocks, 0) * (0.5 + nibble_pairs(blocks[:, at : at + 8]))


def iq3_xxs(blocks: Tensor) -> Decoded:
    scales, signs = _of_word(_words(blocks[:, 66:98]))
    return Decoded((_values("IQ3_XXS", blocks[:, 2:66]) * signs).flatten(1), 0.5 * half(blocks, 0) * scales, None)


def iq3_s(blocks: Tensor) -> Decoded:
    ninth = split(blocks[:, 66:74], *range(8)).flatten(1) & 1
    values = _values("IQ3_S", blocks[:, 2:66].int() | (ninth.int() << 8)) * _signs(blocks[:, 74:106])
    scales = 1 + 2 * nibble_pairs(blocks[:, 106:110]).float()
    return Decoded(values.flatten(1), half(blocks, 0) * scales, None)


def iq1_s(blocks: Tensor) -> Decoded:
    """Values from -1 to 1, all of a group an eighth more or less."""
    shorts = _shorts(blocks[:, 34:50])
    high = split(shorts, 0, 3, 6, 9).flatten(1) & 7
    scales = half(blocks, 0) * (2 * (shorts >> 12 & 7) + 1)
    eighths = 0.125 - 0.25 * (shorts >> 15)
    return Decoded(_values("IQ1_S", blocks[:, 2:34].int() | (high << 8)).flatten(1), scales, scales * eighths)


def iq1_m(blocks: Tensor) -> Decoded:
    """Values are eighths: -1 to 1 by a code, and an eighth more or less by its eight. The block's scale is in the
    highest four bits of its groups' scales."""
    shorts = _shorts(blocks[:, 48:56])
    bits = (shorts >> 12 << torch.tensor([0, 4, 8, 12])).sum(1, keepdim=True)
    scale = bits.to(torch.int16).view(torch.float16).float()
    scales = scale * (2 * (split(shorts, 0, 3, 6, 9).flatten(1) & 7) + 1)
    high = nibble_pairs(blocks[:, 32:48]).int()
    values = 8 * _values("IQ1_M", blocks[:, :32].int() | ((high & 7) << 8)) + (1 - 2 * (high >> 3)).unsqueeze(-1)
    return Decoded(values.to(torch.int8).flatten(1), scales / 8, None)
