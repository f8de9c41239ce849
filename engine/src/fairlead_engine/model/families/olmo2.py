"""OLMo 2 (arXiv 2501.00656): what attention and feed-forward add is normalised, not what they see; queries and keys are
normalised over all heads at once."""

from dataclasses import dataclass

from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.family import ModelFamily
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.model_config import ModelConfig, parse_shape
from fairlead_engine.model.weights import NormNames, Weights

_NORMS = NormNames(None, "post_attention_layernorm", None, "post_feedforward_layernorm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Olmo2Config(ModelConfig):
    attention_bias: bool
    """Whether the four attention projections add a bias."""


def parse(fields: JsonFields) -> Olmo2Config:
    return Olmo2Config(**parse_shape(fields, rms_norm_eps=1e-5), attention_bias=fields.boolean("attention_bias", False))


def build(weights: Weights, config: Olmo2Config) -> Decoder:
    bias = config.attention_bias
    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, qkv_bias=bias, output_bias=bias, norms_projections=True),
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp"),
        norms=_NORMS,
    )


OLMO2 = ModelFamily("olmo2", parse, build)
