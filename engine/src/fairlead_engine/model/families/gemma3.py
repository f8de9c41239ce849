"""Gemma 3 (arXiv 2503.19786), its text models: Gemma 2 with normalised heads in place of bent scores, more layers that
see a window, and positions in these that turn faster."""

from fairlead_engine.kernels.gates import gelu_mul
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.gemma2 import NORMS
from fairlead_engine.model.weights import Weights
from fairlead_protocol.models.model_config import ModelConfig


def build(weights: Weights, config: ModelConfig) -> Decoder:
    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, norms_heads=True),
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp", combine=gelu_mul),
        norms=NORMS,
    )
