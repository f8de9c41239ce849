"""Llama (arXiv 2302.13971, 2407.21783) and what is built like it: the plain decoder, with biases where asked for."""

from dataclasses import dataclass

from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.family import ModelFamily
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.model_config import ModelConfig, parse_shape
from fairlead_engine.model.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(ModelConfig):
    attention_bias: bool
    """Whether the four attention projections add a bias."""
    mlp_bias: bool
    """Whether the three feed-forward projections add a bias."""


def parse(fields: JsonFields) -> LlamaConfig:
    return LlamaConfig(
        **parse_shape(fields),
        attention_bias=fields.boolean("attention_bias", False),
        mlp_bias=fields.boolean("mlp_bias", False),
    )


def build(weights: Weights, config: LlamaConfig) -> Decoder:
    bias = config.attention_bias
    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, qkv_bias=bias, output_bias=bias),
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp", bias=config.mlp_bias),
    )


LLAMA = ModelFamily("llama", parse, build)
