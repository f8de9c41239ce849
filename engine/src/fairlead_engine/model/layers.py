"""The layers of a decoder, as plain callables over the flattened tokens of a step.

They hold weights and nothing else: which tokens there are, and where their keys and values lie, comes with each call.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.paged_attention import AttentionPlan, paged_attention
from fairlead_engine.kernels.store_kv import store_kv
from fairlead_engine.model.linear import Linear
from fairlead_engine.model.rope import rotate


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values, each [kv_heads, slots, head_dim]; slot = block x block size + offset in it."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """The tokens of one step, all sequences flattened one after the other."""

    token_ids: Tensor
    """int64 [tokens]."""
    positions: Tensor
    """int64 [tokens]: place of each token in its sequence."""
    slots: Tensor
    """int64 [tokens]: where in the cache each token's key and value go."""
    logit_rows: Tensor
    """int64 [rows]: which tokens' logits are wanted."""
    attention: AttentionPlan
    """Which tokens attend to which slots."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and signed sines of a step's positions, each [tokens, 1, head_dim]."""

    cosines: Tensor
    sines: Tensor


class RMSNorm:
    """Scales each row to unit root mean square, then by a learned weight (arXiv 1910.07467)."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._shape = tuple(weight.shape)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self._shape, self._weight, self._eps)


class FeedForward:
    """down(silu(gate(x)) * up(x)), with gate and up in one product."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self._gate_up = gate_up
        self._down = down

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        return self._down(functional.silu(gate).mul_(up))


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention over the paged cache, with query, key and value in one product."""

    qkv: Linear
    output: Linear
    query_norm: RMSNorm | None
    key_norm: RMSNorm | None
    num_heads: int
    num_kv_heads: int
    head_dim: int

    def __call__(self, x: Tensor, step: ForwardInput, rotation: Rotation, cache: LayerCache) -> Tensor:
        """x [tokens, hidden] → the heads' outputs side by side [tokens, heads x head_dim]; `output` comes after."""
        heads = self.qkv(x).view(-1, self.num_heads + 2 * self.num_kv_heads, self.head_dim)
        rotated = rotate(self._normalise(heads), rotation.cosines, rotation.sines)
        query, key = torch.split(rotated, [self.num_heads, self.num_kv_heads], dim=1)
        store_kv(key, heads[:, self.num_heads + self.num_kv_heads :], cache.keys, cache.values, step.slots)
        return paged_attention(query, cache.keys, cache.values, step.attention).flatten(1)

    def _normalise(self, heads: Tensor) -> Tensor:
        """Query and key heads, normalised where the architecture does so."""
        if self.query_norm is None or self.key_norm is None:
            return heads[:, : self.num_heads + self.num_kv_heads]
        query, key, _ = torch.split(heads, [self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
        return torch.cat((self.query_norm(query), self.key_norm(key)), dim=1)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Attention, then feed-forward, each on a normalised copy of the stream and added to it."""

    attention_norm: RMSNorm
    attention: Attention
    feed_forward_norm: RMSNorm
    feed_forward: FeedForward

    def __call__(
        self,
        hidden: Tensor,
        step: ForwardInput,
        rotation: Rotation,
        cache: LayerCache,
        rows: Tensor | None = None,
    ) -> Tensor:
        """hidden [tokens, hidden] → the same, or only the given rows of it.

        Tokens meet in the attention alone, so a caller that wants few rows spares the others everything after it.
        """
        attended = self.attention(self.attention_norm(hidden), step, rotation, cache)
        if rows is not None:
            hidden, attended = hidden[rows], attended[rows]
        hidden = hidden + self.attention.output(attended)
        return hidden + self.feed_forward(self.feed_forward_norm(hidden))
