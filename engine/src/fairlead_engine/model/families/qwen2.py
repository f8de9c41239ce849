"""Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): query, key and value always have a bias, the output never."""

from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.family import ModelFamily
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.model_config import ModelConfig, parse_shape
from fairlead_engine.model.weights import Weights
from fairlead_engine.model.windows import windows_by_layer


def parse(fields: JsonFields) -> ModelConfig:
    return ModelConfig(**parse_shape(fields, windows=windows_by_layer))


def build(weights: Weights, config: ModelConfig) -> Decoder:
    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, qkv_bias=True),
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp"),
    )


QWEN2 = ModelFamily("qwen2", parse, build)
