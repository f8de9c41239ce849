"""Rotary position embeddings (Su et al., RoFormer, arXiv 2104.09864), with the scalings that stretch them.

Cosines and sines are computed per step from the step's positions and shared by all layers: microseconds, without a
table of the longest context.
"""

import math

import torch
from torch import Tensor

from fairlead_common.models.rope_config import RopeConfig, RopeKind


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each dimension pair: float32 [rotated elements of a head / 2]."""
    plain = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
    match rope.kind:
        case RopeKind.DEFAULT | RopeKind.DYNAMIC:
            return plain
        case RopeKind.LONGROPE:
            return plain / torch.tensor(rope.long_factors if rope.is_long else rope.short_factors)
        case RopeKind.PROPORTIONAL:
            is_turned = torch.arange(head_dim // 2) < int(rope.pair_share * head_dim // 2)
            return torch.where(is_turned, plain, 0.0) / rope.factor
        case RopeKind.LINEAR:
            return plain / rope.factor
        case RopeKind.LLAMA3:
            wavelengths = 2 * math.pi / plain
            turns = rope.original_max_position_embeddings / wavelengths
            keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
            keep = keep.nan_to_num(1.0).clamp(0.0, 1.0)  # no width, at the edge
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


def halves_of_pairs(head_dim: int, num_turned: int) -> Tensor:
    """Order of a head's elements in which adjacent pairs are parted into halves, as rotations take them: int64
    [head_dim]. Elements behind the first `num_turned` are not turned, and stay."""
    turned = torch.arange(num_turned)
    return torch.cat((turned[::2], turned[1::2], torch.arange(num_turned, head_dim)))


class RotaryEmbedding:
    """Computes from positions the cosines and sines for `norm_rope`."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(rope, rope.num_turned(head_dim)).to(device)
        self._scale = rope.own_scale
        self._axes = torch.tensor(rope.axes, dtype=torch.int64, device=device)
        """Index of the place (time, row or column) behind each dimension pair."""

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """For positions [tokens], or [3, tokens] where tokens have places in time, row and column: cosines and signed
        sines, each [tokens, 1, rotated elements] in `dtype`."""
        turned_by = positions.unsqueeze(-1) if positions.dim() == 1 else positions[self._axes].T
        angles = turned_by.float() * self._frequencies
        cosines, sines = angles.cos(), angles.sin()
        if self._scale != 1.0:
            cosines, sines = cosines * self._scale, sines * self._scale
        cosines = torch.cat((cosines, cosines), dim=-1)
        sines = torch.cat((-sines, sines), dim=-1)
        return cosines.unsqueeze(1).to(dtype), sines.unsqueeze(1).to(dtype)
