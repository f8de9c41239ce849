"""Gemma 2 (arXiv 2408.00118): normalises before and after both parts of a layer, bends scores and logits, and sees a
window in every other layer. Normalisations are stored as what they differ from 1 by."""

from fairlead_engine.kernels.gates import gelu_mul
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.weights import NormNames, Weights
from fairlead_protocol.models.model_config import ModelConfig

NORMS = NormNames(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)


def build(weights: Weights, config: ModelConfig) -> Decoder:
    return weights.decoder(
        attention=weights.attention,
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp", combine=gelu_mul),
        norms=NORMS,
    )
