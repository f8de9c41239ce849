"""Mistral (arXiv 2310.06825): Llama whose layers may all see a window of what came before."""

from functools import partial

from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.family import ModelFamily
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.model_config import ModelConfig, parse_shape
from fairlead_engine.model.weights import Weights
from fairlead_engine.model.windows import windows_everywhere

_DEFAULT_WINDOW = 4096
"""Of a file that does not name one; later models name null."""


def parse(fields: JsonFields) -> ModelConfig:
    windows = partial(windows_everywhere, default=_DEFAULT_WINDOW)
    return ModelConfig(**parse_shape(fields, num_kv_heads=8, windows=windows))


def build(weights: Weights, config: ModelConfig) -> Decoder:
    return weights.decoder(
        attention=weights.attention,
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp"),
    )


MISTRAL = ModelFamily("mistral", parse, build)
