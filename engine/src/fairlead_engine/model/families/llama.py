"""Llama (arXiv 2302.13971, 2407.21783) and what is built like it, Mistral (arXiv 2310.06825) and Qwen2 (arXiv
2407.10671) too: the plain decoder, with biases where its configuration says so."""

from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.weights import Weights
from fairlead_protocol.models.model_config import ModelConfig


def build(weights: Weights, config: ModelConfig) -> Decoder:
    qkv, output = config.qkv_bias, config.output_bias
    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, qkv_bias=qkv, output_bias=output),
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp", bias=config.mlp_bias),
    )
