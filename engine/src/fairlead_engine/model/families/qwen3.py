"""Qwen3 (arXiv 2505.09388): each query and key head is normalised before it is rotated."""

from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.weights import Weights
from fairlead_protocol.models.model_config import ModelConfig


def build(weights: Weights, config: ModelConfig) -> Decoder:
    bias = config.output_bias
    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, qkv_bias=bias, output_bias=bias, norms_heads=True),
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp"),
    )
