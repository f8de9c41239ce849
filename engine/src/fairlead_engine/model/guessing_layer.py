"""A checkpoint's own layer for multi-token prediction: from the model's last hidden state and the token that follows to
the token behind that (DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv 2412.19437, section 2.2).

Input at position i: the embedding of the token at i + 1, and the model's hidden state at i behind its final
normalisation, i.e. the input of its output projection; both normalised, side by side (the embedding first), and
projected to the model's width. A decoder layer follows, with keys and values of its own, and a final normalisation.
The model's embedding and output projection serve the layer, too: checkpoints repeat both, and the copies are not read.
Tokens further on take the layer's own normalised output at i in place of the model's hidden state at i + 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairlead_engine.kernels.attention.backend import LayerCache
from fairlead_engine.model.layers import DecoderLayer, ForwardInput, RMSNorm, Rotations
from fairlead_engine.model.linear import Linear


@dataclass(frozen=True, slots=True)
class GuessingLayer:
    """A loaded layer: immutable, and safe to call with any cache of its shape."""

    embedding_norm: RMSNorm
    hidden_norm: RMSNorm
    join: Linear
    """Embedding and hidden state side by side → [rows, hidden]."""
    layer: DecoderLayer
    final_norm: RMSNorm

    def __call__(
        self, embedded: Tensor, hidden: Tensor, step: ForwardInput, rotations: Rotations, cache: LayerCache
    ) -> Tensor:
        """Embeddings of the tokens behind the step's positions and hidden states, both [tokens, hidden] → the hidden
        states of the step's logit rows [rows, hidden], normalised."""
        both = torch.cat((self.embedding_norm.alone(embedded), self.hidden_norm.alone(hidden)), dim=-1)
        heads, stream = self.layer.before_attention(None, self.join(both))
        attended = self.layer.attention.attend(heads, step, rotations, cache)
        rows = step.logit_rows
        found, _ = self.final_norm(*self.layer.after_attention(attended[rows], stream[rows]))
        return found
