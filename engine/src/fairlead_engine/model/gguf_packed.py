"""Parts of GGUF's blocks: bytes, halves of bytes, and what a block is decoded to."""

from typing import NamedTuple

import torch
from torch import Tensor


class Decoded(NamedTuple):
    """Numbers of some blocks."""

    values: Tensor
    """int8 [blocks, size]."""
    scales: Tensor
    """float32 [blocks, groups]."""
    offsets: Tensor | None
    """The same; None = 0."""


def half(blocks: Tensor, at: int) -> Tensor:
    """float32 [blocks, 1] of the two bytes there."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def nibbles(packed: Tensor) -> Tensor:
    """[blocks, bytes] → [blocks, 2 x bytes]: the lower halves of all, then the upper ones."""
    return torch.cat((packed & 15, packed >> 4), dim=1)


def nibble_pairs(packed: Tensor) -> Tensor:
    """[blocks, bytes] → [blocks, 2 x bytes]: of each byte the lower half and the upper one."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)


def split(packed: Tensor, *shifts: int) -> Tensor:
    """[..., n] → [..., n, shifts]: each number without its lowest bits, as many as a shift says."""
    return packed.unsqueeze(-1) >> torch.tensor(shifts, dtype=packed.dtype)
