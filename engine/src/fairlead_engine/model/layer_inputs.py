"""Layers of Gemma 4: an input of each layer for each token, normalised values, and attention to another layer's keys.

Between layers a token's row holds the hidden state and, beside it, the inputs of all layers: whatever takes rows of the
stream takes both.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fairlead_engine.kernels.attention.backend import LayerCache
from fairlead_engine.kernels.attention.scoring import Scoring
from fairlead_engine.kernels.gates import gelu_mul
from fairlead_engine.kernels.norm_rope_store import rotate
from fairlead_engine.model.decoder import TokenEmbedding
from fairlead_engine.model.layers import Attention, DecoderLayer, Experts, FeedForward, ForwardInput, RMSNorm, Rotations
from fairlead_engine.model.linear import Linear

_HALF = math.sqrt(0.5)
"""Of the sum of two inputs, which are as large as either then."""


class LayerInputs(NamedTuple):
    """Makes the inputs of all layers from a token and its embedding."""

    table: TokenEmbedding
    """Tokens → [layers x size]."""
    projection: Linear
    """[tokens, hidden] → [tokens, layers x size]."""
    norm: RMSNorm
    """Of each layer's projection [size]."""

    def __call__(self, token_ids: Tensor, embedded: Tensor) -> Tensor:
        """[tokens, layers x size]."""
        projected = self.projection(embedded) * embedded.shape[1] ** -0.5
        size = len(self.norm.weight)
        context = self.norm.alone(projected.view(len(projected), -1, size)).flatten(1)
        return (context + self.table(token_ids)) * _HALF


@dataclass(frozen=True, slots=True)
class InputsEmbedding(TokenEmbedding):
    """The embedding, with the inputs of all layers beside."""

    inputs: LayerInputs | None = None
    """None = layers have none."""

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids [tokens] → [tokens, hidden + layers x size]."""
        embedded = TokenEmbedding.__call__(self, token_ids)  # a class with slots is another than super() looks up
        if self.inputs is None:
            return embedded
        return torch.cat((embedded, self.inputs(token_ids, embedded)), 1)


class LayerInput(NamedTuple):
    """A layer's last step: adds what a gate of the hidden state lets through of the layer's input."""

    gate: Linear
    """[tokens, hidden] → [tokens, size]."""
    projection: Linear
    """[tokens, size] → [tokens, hidden]."""
    norm: RMSNorm
    first: int
    """Its first column in the stream."""
    size: int

    def update(self, hidden: Tensor, stream: Tensor) -> Tensor:
        """[tokens, hidden], from the hidden state and from the stream that the layer got."""
        given = stream[:, self.first : self.first + self.size]
        return self.norm.alone(self.projection(gelu_mul(torch.cat((self.gate(hidden), given), 1))))


@dataclass(frozen=True, slots=True)
class ScaledLayer(DecoderLayer):
    """A layer that multiplies what it hands on."""

    factor: Tensor | None = None
    """[1]; None = 1."""
    hidden_size: int = 0
    layer_input: LayerInput | None = None
    is_last: bool = False
    """Whether no layer comes behind, which would need the inputs."""

    def before_attention(self, update: Tensor | None, stream: Tensor) -> tuple[Tensor, Tensor]:
        hidden = stream[:, : self.hidden_size]
        seen = hidden if self.norms.before_attention is None else self.norms.before_attention.alone(hidden)
        return self.attention.heads(seen), stream

    def after_attention(self, attended: Tensor, stream: Tensor) -> tuple[Tensor | None, Tensor]:
        update, hidden = DecoderLayer.after_attention(self, attended, stream[:, : self.hidden_size])
        if update is not None:
            hidden = hidden + (update if update.dim() == 2 else update.sum(1))
        if self.layer_input is not None:
            hidden = hidden + self.layer_input.update(hidden, stream)
        if self.factor is not None:
            hidden = hidden * self.factor
        if self.is_last or self.layer_input is None:
            return None, hidden
        return None, torch.cat((hidden, stream[:, self.hidden_size :]), 1)


@dataclass(frozen=True, slots=True)
class NormedValues:
    """Attention whose values are normalised, or are its keys, normalised without weights (`AttentionLayer`)."""

    attention: Attention
    norm: RMSNorm
    """Of a head's values; weights are 1."""
    are_keys: bool
    """Whether there is no projection of values."""

    @property
    def heads_shape(self) -> tuple[int, int]:
        return self.attention.heads_shape

    @property
    def attended_size(self) -> int:
        return self.attention.attended_size

    @property
    def output(self) -> Callable[[Tensor], Tensor]:
        return self.attention.output

    def heads(self, x: Tensor) -> Tensor:
        own = self.attention
        projected = own.qkv(x).view(len(x), -1, own.head_dim)
        num_before = own.num_heads + (0 if self.are_keys else own.num_kv_heads)
        kept = projected if self.are_keys else projected[:, :num_before]
        return torch.cat((kept, self.norm.alone(projected[:, num_before:].contiguous())), 1)

    def attend(self, heads: Tensor, step: ForwardInput, rotations: Rotations, cache: LayerCache) -> Tensor:
        return self.attention.attend(heads, step, rotations, cache)


@dataclass(frozen=True, slots=True)
class ReadingAttention:
    """Attention to what an earlier layer has stored, which is its cache (`AttentionLayer`)."""

    project: Linear
    output: Linear
    norm: RMSNorm
    """Of a head's query."""
    num_heads: int
    head_dim: int
    scoring: Scoring
    query_scale: float
    """Of queries, beside the scale by the size of a head."""
    is_local: bool

    @property
    def heads_shape(self) -> tuple[int, int]:
        return self.num_heads, self.head_dim

    @property
    def attended_size(self) -> int:
        return self.num_heads * self.head_dim

    def heads(self, x: Tensor) -> Tensor:
        return self.norm.alone(self.project(x).view(len(x), self.num_heads, self.head_dim))

    def attend(self, heads: Tensor, step: ForwardInput, rotations: Rotations, cache: LayerCache) -> Tensor:
        rotation = rotations.local if self.is_local else rotations.everywhere
        query = rotate(heads, rotation.cosines, rotation.sines) * self.query_scale
        return step.backend.attend(query, cache, step.attention, self.scoring).flatten(1)


@dataclass(frozen=True, slots=True)
class ExpertsBeside:
    """A feed-forward and experts of one stream, each behind and before normalisations of its own."""

    dense: FeedForward
    experts: Experts
    before_dense: RMSNorm
    after_dense: RMSNorm
    before_experts: RMSNorm
    after_experts: RMSNorm
    before_router: RMSNorm

    @property
    def waits_for_device(self) -> bool:
        return self.experts.waits_for_device

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, hidden], not normalised → the same shape."""
        dense = self.after_dense.alone(self.dense(self.before_dense.alone(x)))
        logits = self.experts.router(self.before_router.alone(x))
        return dense + self.after_experts.alone(self.experts.routed(self.before_experts.alone(x), logits))
