"""The encoder: whole prompts in, the last hidden states of all their tokens out; nothing is kept.

A runner calls it once per step, with all prompts' tokens one after the other. Source: BERT (Devlin et al., 2018).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.attention.whole_prompts import PromptGroup, attend_whole
from fairlead_engine.model.classifier import Classifier
from fairlead_engine.model.linear import Linear
from fairlead_engine.types import ModelTask
from fairlead_protocol.models.model_task import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """The shape of an encoder; `ModelConfig` is a decoder's."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_types: int
    """Kinds of tokens it tells apart: those of a first text, and of a second; 0 = it has no such table."""
    num_positions: int
    """Rows of the table of positions,"""
    first_position: int
    """of which the first token has this one."""
    padding: int | None = None
    """A token that has no position of its own, but the one before the first; None = all have."""
    activation: str
    norm_eps: float
    longest_prompt: int
    """Most tokens of a prompt."""
    outcome: Outcome = Outcome.PLAIN
    """Of its classifier."""
    dtype: str
    """Number format the checkpoint was saved in: float32, bfloat16 or float16."""
    task: ModelTask
    eos_token_ids: tuple[int, ...] = field(default=(), init=False)

    @property
    def max_position_embeddings(self) -> int:
        """Longest context: a prompt, and a place for what is read off it."""
        return self.longest_prompt + 1


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Normalises each row, mean and spread."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class PlacedEmbedding:
    """Vectors of tokens, with those of their places and kinds added."""

    words: Tensor
    positions: Tensor
    types: Tensor | None
    norm: LayerNorm

    def __call__(self, token_ids: Tensor, positions: Tensor, types: Tensor) -> Tensor:
        """int64 [tokens] each → [tokens, hidden]."""
        found = functional.embedding(token_ids, self.words) + functional.embedding(positions, self.positions)
        if self.types is not None:
            found = found + functional.embedding(types, self.types)
        return self.norm(found)


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """Attention, then feed-forward, each normalised together with what it was added to."""

    qkv: Linear
    output: Linear
    attention_norm: LayerNorm
    up: Linear
    activation: Callable[[Tensor], Tensor]
    down: Linear
    norm: LayerNorm
    num_heads: int

    def __call__(self, x: Tensor, groups: list[PromptGroup]) -> Tensor:
        """x [tokens, hidden] → the same shape."""
        query, key, value = self.qkv(x).view(len(x), 3, self.num_heads, -1).unbind(1)
        x = self.attention_norm(x + self.output(attend_whole(query, key, value, groups)))
        return self.norm(x + self.down(self.activation(self.up(x))))


@dataclass(frozen=True, slots=True)
class Encoder:
    """A loaded model: immutable."""

    config: EncoderConfig
    embedding: PlacedEmbedding
    layers: tuple[EncoderLayer, ...]
    classifier: Classifier | None
    num_parameters: int
    weight_bytes: int

    def __call__(self, token_ids: Tensor, positions: Tensor, types: Tensor, groups: list[PromptGroup]) -> Tensor:
        """int64 [tokens] each, `groups` of the prompts they belong to → [tokens, hidden]."""
        x = self.embedding(token_ids, positions, types)
        for layer in self.layers:
            x = layer(x, groups)
        return x
