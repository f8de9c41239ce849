"""Layers that keep a state of each sequence in place of keys and values, and attention whose outputs are gated."""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_common.models.model_config import StateNorm, StateShape
from fairlead_engine.kernels.attention.backend import LayerCache
from fairlead_engine.kernels.recurrence import StateCache, convolve, recur
from fairlead_engine.kernels.rms_norm import rms_norm
from fairlead_engine.model.layers import Attention, ForwardInput, Rotations
from fairlead_engine.model.linear import Linear
from fairlead_engine.model.shard import Shard, scaled

_NORM_EPS = 1e-6
"""Of queries and keys, as transformers has it."""


@dataclass(frozen=True, slots=True)
class GatedAttention(Attention):
    """Attention with a gate for each query head, projected beside the queries."""

    @property
    def heads_shape(self) -> tuple[int, int]:
        return 2 * (self.num_heads + self.num_kv_heads), self.head_dim

    def attend(self, heads: Tensor, step: ForwardInput, rotations: Rotations, cache: LayerCache) -> Tensor:
        asked, others = torch.split(heads, [2 * self.num_heads, 2 * self.num_kv_heads], 1)
        query, gate = asked[:, ::2], asked[:, 1::2]
        # An explicit class: a dataclass with slots is another class than the one that super() would look up.
        attended = Attention.attend(self, torch.cat((query, others), 1), step, rotations, cache)
        return attended * gate.sigmoid().flatten(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadGatedAttention(Attention):
    """Attention whose heads are gated by one number each."""

    gate: Linear
    """[rows, hidden] → [rows, query heads]."""

    @property
    def heads_shape(self) -> tuple[int, int]:
        num, size = Attention.heads_shape.__get__(self)
        return 1, num * size + self.num_heads

    def heads(self, x: Tensor) -> Tensor:
        num, size = Attention.heads_shape.__get__(self)
        return torch.cat((self.qkv(x).view(-1, num * size), self.gate(x)), 1).unsqueeze(1)

    def attend(self, heads: Tensor, step: ForwardInput, rotations: Rotations, cache: LayerCache) -> Tensor:
        num, size = Attention.heads_shape.__get__(self)
        whole, gate = torch.split(heads.squeeze(1), [num * size, self.num_heads], 1)
        attended = Attention.attend(self, whole.contiguous().view(-1, num, size), step, rotations, cache)
        return (attended.view(-1, self.num_heads, size) * gate.sigmoid().unsqueeze(-1)).flatten(1)


class StateParts(NamedTuple):
    """Elements of a recurrent layer's vectors that belong to a rank's heads."""

    heads: slice
    keys: slice
    """Of all keys, and as many queries."""
    values: slice

    @classmethod
    def of(cls, shape: StateShape, shard: Shard) -> "StateParts":
        """`shape`: of the whole layer."""
        heads, key_heads = shard.part(shape.num_heads), shard.key_heads(shape.num_key_heads)
        return cls(heads, scaled(key_heads, shape.key_dim), scaled(heads, shape.value_dim))


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """A recurrent layer of Qwen3-Next (`AttentionLayer`)."""

    project: Linear
    """[rows, hidden] → queries, keys, values and gates of outputs, side by side."""
    modulate: Linear
    """[rows, hidden] → strengths and decays."""
    is_grouped: bool
    """Whether both lie by key head; else all queries come first, and so on."""
    output: Linear
    kernel: Tensor
    """float32 [kernel_size, channels]: weights of the convolution."""
    rates: Tensor
    """float32 [heads]: factor of decays."""
    offsets: Tensor
    """float32 [heads]: added to decays first."""
    norm: Tensor
    """[value_dim]: weights of the outputs' normalisation."""
    shape: StateShape
    """Of this rank's heads."""

    @property
    def heads_shape(self) -> tuple[int, int]:
        shape = self.shape
        return 1, shape.channels + shape.num_heads * (shape.value_dim + 2)

    @property
    def attended_size(self) -> int:
        return self.shape.num_heads * self.shape.value_dim

    def heads(self, x: Tensor) -> Tensor:
        shape, each = self.shape, self.shape.num_heads // self.shape.num_key_heads
        projected, modulated = self.project(x), self.modulate(x)
        if not self.is_grouped:
            return torch.cat((projected, modulated), 1).unsqueeze(1)
        sizes = [shape.key_dim, shape.key_dim, each * shape.value_dim, each * shape.value_dim]
        groups = projected.view(len(x), shape.num_key_heads, -1), modulated.view(len(x), shape.num_key_heads, -1)
        parts = (*torch.split(groups[0], sizes, 2), *torch.split(groups[1], [each, each], 2))
        return torch.cat([part.flatten(1) for part in parts], 1).unsqueeze(1)

    def attend(self, heads: Tensor, step: ForwardInput, rotations: Rotations, cache: StateCache) -> Tensor:
        """[tokens, *heads_shape] → [tokens, attended_size]; `cache` holds the states of all slots."""
        shape, rows = self.shape, step.states
        assert rows is not None, "the step was prepared for a model without states"
        size, keys = shape.num_heads, shape.num_key_heads * shape.key_dim
        mixed, gate, strength, decay = torch.split(
            heads.squeeze(1), [shape.channels, self.attended_size, size, size], 1
        )
        mixed = convolve(mixed, self.kernel, None, cache, rows)
        query, key, value = torch.split(mixed, [keys, keys, self.attended_size], 1)
        query, key = (_normed(each.reshape(len(mixed), -1, shape.key_dim)) for each in (query, key))
        decay = -self.rates * functional.softplus(decay.float() + self.offsets)
        value = value.reshape(len(mixed), size, -1).float()
        outputs = recur(query * shape.key_dim**-0.5, key, value, decay, strength.float().sigmoid(), cache, rows)
        normed = rms_norm(outputs.to(heads.dtype), self.norm, shape.norm_eps)
        return (normed * functional.silu(gate.reshape(normed.shape).float())).to(heads.dtype).flatten(1)


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A recurrent layer by Mamba-2 (`AttentionLayer`): queries and keys are Mamba-2's C and B."""

    project: Linear
    """[rows, hidden] → gates of outputs, values, keys, queries, and steps, side by side."""
    output: Linear
    kernel: Tensor
    """float32 [kernel_size, channels]: weights of the convolution."""
    bias: Tensor | None
    """float32 [channels]."""
    rates: Tensor
    """float32 [heads]: factor of decays."""
    offsets: Tensor
    """float32 [heads]: added to steps first."""
    passed: Tensor
    """float32 [heads]: share of a value in its own output."""
    norm: Tensor | None
    """[heads x value_dim]: weights of the outputs' normalisation, by group of heads with the same key."""
    shape: StateShape
    """Of this rank's heads."""
    num_groups: int
    """Of heads with the same key, on all ranks."""
    shard: Shard
    factors: Tensor | None = None
    """Of what is projected."""

    @property
    def heads_shape(self) -> tuple[int, int]:
        return 1, self.shape.channels + self.attended_size + self.shape.num_heads

    @property
    def attended_size(self) -> int:
        return self.shape.num_heads * self.shape.value_dim

    def heads(self, x: Tensor) -> Tensor:
        projected = self.project(x)
        return (projected if self.factors is None else projected * self.factors).unsqueeze(1)

    def attend(self, heads: Tensor, step: ForwardInput, rotations: Rotations, cache: StateCache) -> Tensor:
        """As `GatedDeltaNet.attend`."""
        shape, rows = self.shape, step.states
        assert rows is not None, "the step was prepared for a model without states"
        number, groups, keys = len(heads), shape.num_key_heads, shape.num_key_heads * shape.key_dim
        gate, mixed, time = torch.split(heads.squeeze(1), [self.attended_size, shape.channels, shape.num_heads], 1)
        mixed = convolve(mixed, self.kernel, self.bias, cache, rows).float()
        value, key, query = torch.split(mixed, [self.attended_size, keys, keys], 1)
        value = value.reshape(number, shape.num_heads, -1)
        query, key = (each.reshape(number, groups, -1) for each in (query, key))
        time = functional.softplus(time.float() + self.offsets)
        if shape.least_step:
            time = time.clamp(min=shape.least_step)
        outputs = recur(query, key, value * time.unsqueeze(-1), -self.rates * time, None, cache, rows)
        outputs = (outputs + value * self.passed.unsqueeze(-1)).flatten(1).to(heads.dtype).float()
        gate = functional.silu(gate.float())
        if self.norm is None:
            return (outputs * gate).to(heads.dtype)
        is_gated = shape.norm is StateNorm.BEHIND_GATE
        by_group = (outputs * gate if is_gated else outputs).view(number, groups, -1)
        means = self.shard.mean(by_group.square().mean(-1), self.num_groups)
        normed = (by_group * (means + shape.norm_eps).rsqrt().unsqueeze(-1)).flatten(1)
        return self.norm * normed.to(heads.dtype) if is_gated else (self.norm * normed * gate).to(heads.dtype)


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """A layer of LFM2 whose tokens see the last few tokens alone (`AttentionLayer`)."""

    project: Linear
    """[rows, hidden] → gates of inputs, gates of outputs, and inputs, side by side."""
    output: Linear
    kernel: Tensor
    """float32 [kernel_size, channels]: weights of the convolution."""
    bias: Tensor | None
    """float32 [channels]."""
    num_channels: int
    """Of this rank."""

    @property
    def heads_shape(self) -> tuple[int, int]:
        return 3, self.num_channels

    @property
    def attended_size(self) -> int:
        return self.num_channels

    def heads(self, x: Tensor) -> Tensor:
        return self.project(x).view(-1, *self.heads_shape)

    def attend(self, heads: Tensor, step: ForwardInput, rotations: Rotations, cache: StateCache) -> Tensor:
        """As `GatedDeltaNet.attend`; the states have no matrices."""
        assert step.states is not None, "the step was prepared for a model without states"
        entering, leaving, values = heads.unbind(1)
        return leaving * convolve(entering * values, self.kernel, self.bias, cache, step.states, activates=False)


class JointCache(NamedTuple):
    """Of a layer that attends and keeps a state."""

    attended: LayerCache
    states: StateCache


@dataclass(frozen=True, slots=True)
class JointLayer:
    """Attention and a recurrent layer of the same input, whose outputs are added (`AttentionLayer`)."""

    attention: Attention
    recurrent: Mamba2
    attention_factors: tuple[float, float]
    """Of attention's input and output."""
    recurrent_factors: tuple[float, float]
    """Of the recurrent layer's input and output."""

    @property
    def heads_shape(self) -> tuple[int, int]:
        return 1, prod(self.attention.heads_shape) + prod(self.recurrent.heads_shape)

    @property
    def attended_size(self) -> int:
        return self.attention.attended_size + self.recurrent.attended_size

    def heads(self, x: Tensor) -> Tensor:
        attended = self.attention.heads(_scaled(x, self.attention_factors[0])).flatten(1)
        return torch.cat((attended, self.recurrent.heads(_scaled(x, self.recurrent_factors[0])).flatten(1)), 1)[:, None]

    def attend(self, heads: Tensor, step: ForwardInput, rotations: Rotations, cache: JointCache) -> Tensor:
        """As `Attention.attend`, beside `Mamba2.attend`."""
        shape = self.attention.heads_shape
        first, second = torch.split(heads, [prod(shape), prod(self.recurrent.heads_shape)], 2)
        attended = self.attention.attend(first.contiguous().view(-1, *shape), step, rotations, cache.attended)
        return torch.cat((attended, self.recurrent.attend(second, step, rotations, cache.states)), 1)

    def output(self, attended: Tensor) -> Tensor:
        """[rows, attended_size] → [rows, hidden]."""
        sizes = [self.attention.attended_size, self.recurrent.attended_size]
        first, second = (part.contiguous() for part in torch.split(attended, sizes, 1))
        found = _scaled(self.attention.output(first), self.attention_factors[1])
        return found + _scaled(self.recurrent.output(second), self.recurrent_factors[1])


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x * factor


def _normed(x: Tensor) -> Tensor:
    """Vectors of length 1, float32."""
    x = x.float()
    return x * (x.square().sum(-1, keepdim=True) + _NORM_EPS).rsqrt()
