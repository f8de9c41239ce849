"""Qwen3 (arXiv 2505.09388): each query and key head is normalised before it is rotated."""

from dataclasses import dataclass

from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.family import ModelFamily
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.model_config import ModelConfig, parse_shape
from fairlead_engine.model.weights import Weights
from fairlead_engine.model.windows import windows_by_layer

DEFAULT_HEAD_DIM = 128
"""Whatever hidden size and number of heads are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3Config(ModelConfig):
    attention_bias: bool
    """Whether the four attention projections add a bias."""


def parse(fields: JsonFields) -> Qwen3Config:
    shape = parse_shape(fields, head_dim=DEFAULT_HEAD_DIM, windows=windows_by_layer)
    return Qwen3Config(**shape, attention_bias=fields.boolean("attention_bias", False))


def build(weights: Weights, config: Qwen3Config) -> Decoder:
    bias = config.attention_bias
    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, qkv_bias=bias, output_bias=bias, norms_heads=True),
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp"),
    )


QWEN3 = ModelFamily("qwen3", parse, build)
