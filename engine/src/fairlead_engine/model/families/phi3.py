"""Phi-3 (arXiv 2404.14219), and Phi-4, built like it: Llama whose projections of one input are stored as one. Long
contexts are longrope's, which older files call otherwise; Phi-4-mini turns a part of each head."""

from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.weights import Weights
from fairlead_protocol.models.model_config import ModelConfig


def build(weights: Weights, config: ModelConfig) -> Decoder:
    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, is_fused=True),
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp", fused="gate_up_proj"),
    )
