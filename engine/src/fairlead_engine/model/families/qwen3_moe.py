"""Qwen3-MoE (arXiv 2505.09388): Qwen3 with many narrow experts in place of the feed-forward."""

from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.qwen2_moe import feed_forward
from fairlead_engine.model.weights import Weights
from fairlead_protocol.models.families.experts import QwenExpertsConfig


def build(weights: Weights, config: QwenExpertsConfig) -> Decoder:
    bias = config.output_bias
    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, qkv_bias=bias, output_bias=bias, norms_heads=True),
        feed_forward=lambda prefix: feed_forward(weights, config, prefix),
    )
