"""Rotary position embeddings (Su et al., RoFormer, arXiv 2104.09864), with the scalings that stretch them.

Cosines and sines are computed per step from the step's positions and shared by all layers: that costs microseconds and
needs no table of the longest context.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor


class RopeKind(StrEnum):
    """How the frequencies are stretched beyond the context of pre-training."""

    DEFAULT = "default"
    """Not at all."""
    LINEAR = "linear"
    """All by the same factor (position interpolation, arXiv 2306.15595)."""
    YARN = "yarn"
    """As llama3, by dimension; cosines and sines are scaled, too (arXiv 2309.00071)."""
    LLAMA3 = "llama3"
    """Long wavelengths by the factor, short ones not, a smooth passage between (Llama 3.1)."""
    LONGROPE = "longrope"
    """Each by a factor of its own, of which it has two: for contexts within that of pre-training, and for longer ones;
    cosines and sines are scaled, too (arXiv 2402.13753)."""
    DYNAMIC = "dynamic"
    """Not at all up to the context that the model was made for, which is the longest that is served (NTK-aware)."""


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
    share: float = 1.0
    """Of a head's elements, the first ones, that are turned at all."""
    original_max_position_embeddings: int = 0
    """llama3, yarn, longrope: context length of pre-training, in tokens."""
    beta_fast: float = 32.0
    """yarn: dimensions that turn more often within it stay as they are."""
    beta_slow: float = 1.0
    """yarn: those that turn less often are divided by `factor`."""
    truncate: bool = True
    """yarn: whether the passage between begins and ends at a whole dimension."""
    scale: float = 1.0
    """yarn, longrope: of cosines and sines."""
    score_weight: float = 0.0
    """yarn: by how much of the stretch scores of attention are scaled, in models that do it (`yarn_scale`)."""
    short_factors: tuple[float, ...] = ()
    """longrope: what each frequency is divided by for contexts within that of pre-training,"""
    long_factors: tuple[float, ...] = ()
    """and for longer ones."""
    sections: tuple[int, ...] = ()
    """Dimension pairs that turn by a token's place in time, then those that do by its row, then by its column, of
    models that see (multimodal rope, arXiv 2409.12191); empty = all turn by one place."""
    is_long: bool = True
    """longrope: which of the two it is. Keys stay in the cache while a sequence grows, so all have the same."""

    def for_context(self, longest: int) -> "RopeConfig":
        """Of an engine whose sequences have so many tokens at most."""
        return replace(self, is_long=longest > self.original_max_position_embeddings)

    def num_turned(self, head_dim: int) -> int:
        """Elements of a head that are turned."""
        return int(head_dim * self.share)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each dimension pair: float32 [head_dim / 2], of as many elements as are turned."""
    plain = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
    match rope.kind:
        case RopeKind.DEFAULT | RopeKind.DYNAMIC:
            return plain
        case RopeKind.LONGROPE:
            return plain / torch.tensor(rope.long_factors if rope.is_long else rope.short_factors)
        case RopeKind.LINEAR:
            return plain / rope.factor
        case RopeKind.LLAMA3:
            wavelengths = 2 * math.pi / plain
            turns = rope.original_max_position_embeddings / wavelengths
            keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
            keep = keep.clamp(0.0, 1.0)
            return (1 - keep) * plain / rope.factor + keep * plain
        case RopeKind.YARN:
            # The dimension pairs that turn so often within the original context.
            radians = (
                rope.original_max_position_embeddings / (each * 2 * math.pi)
                for each in (rope.beta_fast, rope.beta_slow)
            )
            first, last = (head_dim * math.log(each) / (2 * math.log(rope.theta)) for each in radians)
            if rope.truncate:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, head_dim - 1)
            width = last - first or 0.001
            keep = 1.0 - ((torch.arange(head_dim // 2).float() - first) / width).clamp(0.0, 1.0)
            return (1 - keep) * plain / rope.factor + keep * plain


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """What cosines and sines are scaled by, as yarn has it."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


class RotaryEmbedding:
    """Turns positions into the cosines and sines that `norm_rope` applies."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(rope, rope.num_turned(head_dim)).to(device)
        self._scale = rope.scale
        axes = [axis for axis, size in enumerate(rope.sections) for _ in range(size)]
        self._axes = torch.tensor(axes, dtype=torch.int64, device=device)
        """Which of a token's places each dimension pair turns by."""

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """For positions [tokens], or [3, tokens] where a token has places in time, row and column: cosines and signed
        sines, each [tokens, 1, elements that are turned] in `dtype`."""
        turned_by = positions.unsqueeze(-1) if positions.dim() == 1 else positions[self._axes].T
        angles = turned_by.float() * self._frequencies
        cosines, sines = angles.cos(), angles.sin()
        if self._scale != 1.0:
            cosines, sines = cosines * self._scale, sines * self._scale
        cosines = torch.cat((cosines, cosines), dim=-1)
        sines = torch.cat((-sines, sines), dim=-1)
        return cosines.unsqueeze(1).to(dtype), sines.unsqueeze(1).to(dtype)
