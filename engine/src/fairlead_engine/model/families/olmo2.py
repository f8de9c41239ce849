"""OLMo 2 (arXiv 2501.00656): what attention and feed-forward add is normalised, not what they see; queries and keys are
normalised over all heads at once."""

from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.weights import NormNames, Weights
from fairlead_protocol.models.model_config import ModelConfig

_NORMS = NormNames(None, "post_attention_layernorm", None, "post_feedforward_layernorm")


def build(weights: Weights, config: ModelConfig) -> Decoder:
    bias = config.output_bias
    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, qkv_bias=bias, output_bias=bias, norms_projections=True),
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp"),
        norms=_NORMS,
    )
