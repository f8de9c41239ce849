"""The decoder: tokens in, hidden states and logits out; writes keys and values to the cache.

The runner calls it once per step. It knows no requests: attention alone knows which token belongs to whom.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_common.models.model_config import ModelConfig
from fairlead_engine.model.classifier import Classifier
from fairlead_engine.model.guessing_layer import GuessingLayer
from fairlead_engine.model.layers import DecoderLayer, ForwardInput, RMSNorm, Rotation, Rotations
from fairlead_engine.model.linear import Linear
from fairlead_engine.model.lora.adapted_layers import AdaptedRows
from fairlead_engine.model.lora.adapter_slots import AdapterSlots
from fairlead_engine.model.rope import RotaryEmbedding
from fairlead_engine.model.shard import Shard
from fairlead_engine.model.vision_tower import VisionTower


class BetweenAttentions(Protocol):
    """A step's operations that treat each token by itself: the decoder's, or graphs that replay them."""

    def first(self, token_ids: Tensor) -> tuple[Tensor, Tensor]: ...

    def following(self, index: int, attended: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]: ...


class Taps(NamedTuple):
    """Copies the inputs of some layers, or of the output projection, of all tokens of a step."""

    layers: tuple[int, ...]
    """The output projection counts as a layer behind the last."""
    streams: Tensor
    """[tokens, layers x hidden], filled in: the layers side by side."""

    def take(self, layer: int, stream: Tensor) -> None:
        """Takes the input of a layer, or of the output projection, [tokens, hidden], of a stream that may be wider."""
        for place, wanted in enumerate(self.layers):
            if wanted == layer:
                width = self.streams.shape[1] // len(self.layers)
                self.streams[:, place * width : (place + 1) * width].copy_(stream[:, :width])


@dataclass(frozen=True, slots=True)
class Decoder:
    """A loaded model: immutable, and safe to call with any cache of its shape."""

    config: ModelConfig
    embedding: "TokenEmbedding"
    rotary: RotaryEmbedding
    local_rotary: RotaryEmbedding | None
    """Of local layers, where it differs."""
    layers: tuple[DecoderLayer, ...]
    final_norm: RMSNorm
    head: Linear
    """The output projection, or `classifier`'s."""
    shard: Shard
    """The part of the model that is here."""
    slots: AdapterSlots | None
    """Of adapters that change its linear layers; None = without."""
    num_parameters: int
    """Distinct weights of the whole model; a tied output projection counts once."""
    weight_bytes: int
    """Memory of this part's weights as loaded; a tied projection with a packed copy counts twice."""
    classifier: Classifier | None = None
    """None = it generates."""
    vision: VisionTower | None = None
    """For images; None = without."""
    guessing: GuessingLayer | None = None
    """The checkpoint's layer that guesses one token further; None = absent, or not asked for."""

    @property
    def why_not_captured(self) -> str | None:
        """Why a step cannot be captured, in words; None = the host reads no results during the step."""
        if self.config.indexed:
            return "the host looks at contexts, of which its attention chooses keys"
        looks = any(layer.feed_forward.waits_for_device for layer in self.layers)
        return "the host looks at which experts tokens go to, since no two need be stored alike" if looks else None

    def __call__(
        self,
        step: ForwardInput,
        caches: Sequence[Any],
        between: "BetweenAttentions | None" = None,
        taps: Taps | None = None,
    ) -> Tensor:
        """Runs one step and returns the last hidden states of its logit rows, normalised: [rows, hidden]. `between`
        computes the parts before each attention; None = the decoder itself. `taps` is filled in."""
        between = between or self
        self.adapt(step.adapted)
        rotations = self.rotations(step.positions if step.places is None else step.places)
        given = step.given
        later: Sequence[Tensor] = ()
        if given:  # they are whole on every rank, behind the sum
            own, *later = torch.split(given.embeddings, self.config.hidden_size, dim=1)
            embedded = self.embedding(step.token_ids).index_copy(0, given.rows, own)
            heads, stream = self.layers[0].before_attention(None, embedded)
        else:
            heads, stream = between.first(step.token_ids)
        for index, (layer, cache) in enumerate(zip(self.layers[:-1], caches[:-1], strict=True)):
            if taps is not None:
                taps.take(index, stream)
            attended = layer.attention.attend(heads, step, rotations, cache)
            if given and index < len(later):
                update, stream = layer.after_attention(attended, stream)
                stream = stream.index_add(0, given.rows, later[index])
                heads, stream = self.layers[index + 1].before_attention(update, stream)
            else:
                heads, stream = between.following(index, attended, stream)
        if taps is not None:
            taps.take(len(self.layers) - 1, stream)
        last = self.layers[-1]
        attended = last.attention.attend(heads, step, rotations, caches[-1])
        rows = step.logit_rows
        if taps is not None and len(self.layers) in taps.layers:
            every, _ = self.final_norm(*last.after_attention(attended, stream))
            taps.take(len(self.layers), every)
            return every[rows]
        self.adapt(step.adapted_reads)  # nobody asks for what comes after the last attention of the others
        hidden, _ = self.final_norm(*last.after_attention(attended[rows], stream[rows]))
        return hidden

    def adapt(self, rows: AdaptedRows | None) -> None:
        """Sets the rows with adapters for the next computations."""
        if self.slots is not None:
            self.slots.now = rows

    def first(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Up to the first attention: its heads [tokens, all heads, head_dim], and the stream [tokens, hidden]."""
        return self.layers[0].before_attention(None, self.embedding(token_ids))

    def following(self, index: int, attended: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        """From layer `index`'s attention [tokens, heads x head_dim] to the next attention."""
        return self.layers[index + 1].before_attention(*self.layers[index].after_attention(attended, stream))

    def rotations(self, positions: Tensor) -> Rotations:
        """For a step's positions, int64 [tokens], or [3, tokens] (`ForwardInput.places`)."""
        dtype = self.embedding.weight.dtype
        everywhere = Rotation(*self.rotary(positions, dtype))
        local = self.local_rotary
        return Rotations(everywhere, everywhere if local is None else Rotation(*local(positions, dtype)))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [rows, hidden] → logits [rows, vocab], in the weights' dtype."""
        if self.classifier is not None:
            return self.head(hidden)  # of no rows: nothing is chosen
        logits, cap = self.shard.gather(self.head(hidden), self.config.vocab_size), self.config.logit_soft_cap
        return torch.tanh(logits / cap) * cap if cap else logits


@dataclass(frozen=True, slots=True)
class TokenEmbedding:
    """Vectors of token ids; each rank has some of them."""

    weight: Tensor
    """[tokens, hidden]."""
    first: int
    """The token of the first row."""
    shard: Shard
    scale: float = 1.0
    """Factor of the vectors."""

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids [tokens] → [tokens, hidden]."""
        found = self._find(token_ids)
        return found if self.scale == 1.0 else found * self.scale

    def _find(self, token_ids: Tensor) -> Tensor:
        if self.shard.size == 1:
            return functional.embedding(token_ids, self.weight)
        rows = token_ids - self.first
        is_here = (rows >= 0) & (rows < len(self.weight))
        found = functional.embedding(rows.clamp(0, len(self.weight) - 1), self.weight)
        return self.shard.sum(found.masked_fill_(~is_here.unsqueeze(1), 0.0))
