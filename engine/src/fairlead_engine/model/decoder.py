"""The decoder: tokens in, hidden states and their logits out, keys and values written to the cache on the way.

The runner calls it once per step. It knows no requests: which token belongs to whom is the attention's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.attention.backend import LayerCache
from fairlead_engine.model.layers import DecoderLayer, ForwardInput, RMSNorm, Rotation
from fairlead_engine.model.linear import Linear
from fairlead_engine.model.model_config import ModelConfig
from fairlead_engine.model.rope import RotaryEmbedding


@dataclass(frozen=True, slots=True)
class Decoder:
    """A loaded model: immutable, and safe to call with any cache of its shape."""

    config: ModelConfig
    embedding: Tensor
    """[vocab, hidden]."""
    rotary: RotaryEmbedding
    layers: tuple[DecoderLayer, ...]
    final_norm: RMSNorm
    head: Linear
    num_parameters: int
    """Distinct weights; a tied output projection counts once."""
    weight_bytes: int
    """Memory the weights take as loaded; a tied projection that had to be packed counts again."""

    def __call__(self, step: ForwardInput, caches: Sequence[LayerCache]) -> Tensor:
        """Runs one step and returns the last hidden states of its logit rows, normalised: [rows, hidden]."""
        rotation = Rotation(*self.rotary(step.positions, self.embedding.dtype))
        update, stream = None, functional.embedding(step.token_ids, self.embedding)
        for layer, cache in zip(self.layers[:-1], caches[:-1], strict=True):
            update, stream = layer(update, stream, step, rotation, cache)
        update, stream = self.layers[-1](update, stream, step, rotation, caches[-1], step.logit_rows)
        hidden, _ = self.final_norm(update, stream)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [rows, hidden] → logits [rows, vocab], in the weights' dtype."""
        return self.head(hidden)
