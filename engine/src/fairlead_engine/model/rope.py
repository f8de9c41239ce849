"""Rotary position embeddings (Su et al., RoFormer, arXiv 2104.09864), with the scalings that stretch them.

Cosines and sines are computed per step from the step's positions and shared by all layers: that costs microseconds and
needs no table of the longest context.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor


class RopeKind(StrEnum):
    """How the frequencies are stretched beyond the context of pre-training."""

    DEFAULT = "default"
    """Not at all."""
    LINEAR = "linear"
    """All by the same factor (position interpolation, arXiv 2306.15595)."""
    LLAMA3 = "llama3"
    """Long wavelengths by the factor, short ones not, a smooth passage between (Llama 3.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Base and stretch of the rotary frequencies; what `kind` does not need stays at its default."""

    theta: float
    """Base: dimension pair i turns by theta^(-2i / head_dim) radians per position."""
    kind: RopeKind = RopeKind.DEFAULT
    factor: float = 1.0
    """By how much frequencies are divided."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths above the original context over this are divided by `factor`."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths below the original context over this stay as they are."""
    original_max_position_embeddings: int = 0
    """llama3: context length of pre-training, in tokens."""


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each dimension pair: float32 [head_dim / 2]."""
    plain = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
    match rope.kind:
        case RopeKind.DEFAULT:
            return plain
        case RopeKind.LINEAR:
            return plain / rope.factor
        case RopeKind.LLAMA3:
            wavelengths = 2 * math.pi / plain
            turns = rope.original_max_position_embeddings / wavelengths
            keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
            keep = keep.clamp(0.0, 1.0)
            return (1 - keep) * plain / rope.factor + keep * plain


class RotaryEmbedding:
    """Turns positions into the cosines and sines that `norm_rope` applies."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(rope, head_dim).to(device)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """For positions [tokens]: cosines and signed sines, each [tokens, 1, head_dim] in `dtype`."""
        angles = positions.float().unsqueeze(-1) * self._frequencies
        cosines, sines = angles.cos(), angles.sin()
        cosines = torch.cat((cosines, cosines), dim=-1)
        sines = torch.cat((-sines, sines), dim=-1)
        return cosines.unsqueeze(1).to(dtype), sines.unsqueeze(1).to(dtype)
