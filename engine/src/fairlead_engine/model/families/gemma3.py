"""Gemma 3 (arXiv 2503.19786), its text models: Gemma 2 with normalised heads in place of bent scores, more layers that
see a window, and positions in these that turn faster."""

from dataclasses import replace

from fairlead_engine.kernels.gates import gelu_mul
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.family import ModelFamily
from fairlead_engine.model.families.gemma2 import NORMS, gemma_shape, soft_cap
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.model_config import ModelConfig, parse_rope, refuse
from fairlead_engine.model.rope import RopeConfig
from fairlead_engine.model.weights import Weights

_BASE, _LOCAL_BASE = 1_000_000.0, 10_000.0


def parse(fields: JsonFields) -> ModelConfig:
    if fields.boolean("use_bidirectional_attention", False):
        raise refuse("use_bidirectional_attention", "use a model that generates text")
    config = ModelConfig(
        **gemma_shape(fields, every=fields.positive_int("sliding_window_pattern", 6)),
        soft_cap=soft_cap(fields, "attn_logit_softcapping", 0.0),
        logit_soft_cap=soft_cap(fields, "final_logit_softcapping", 0.0),
    )
    return replace(config, rope=parse_rope(fields, _BASE, "full_attention"), local_rope=_local_rope(fields))


def _local_rope(fields: JsonFields) -> RopeConfig:
    """Older files name its base beside the other's, newer ones have one section for each kind of layer."""
    newer = fields.section("rope_parameters")
    if newer is not None and newer.section("sliding_attention") is not None:
        return parse_rope(fields, _LOCAL_BASE, "sliding_attention")
    return RopeConfig(theta=fields.positive_number("rope_local_base_freq", _LOCAL_BASE))


def build(weights: Weights, config: ModelConfig) -> Decoder:
    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, norms_heads=True),
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp", combine=gelu_mul),
        norms=NORMS,
    )


GEMMA3 = ModelFamily("gemma3_text", parse, build)
