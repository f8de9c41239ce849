"""Phi-3 (arXiv 2404.14219), and Phi-4, built like it: Llama whose projections of one input are stored as one. Long
contexts are longrope's, which older files call otherwise; Phi-4-mini turns a part of each head."""

from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.family import ModelFamily
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.model_config import ModelConfig, parse_shape
from fairlead_engine.model.rope import RopeKind
from fairlead_engine.model.weights import Weights
from fairlead_engine.model.windows import windows_everywhere


def parse(fields: JsonFields) -> ModelConfig:
    return ModelConfig(
        **parse_shape(
            fields,
            rms_norm_eps=1e-5,
            windows=windows_everywhere,
            rope_names={"su": RopeKind.LONGROPE, "yarn": RopeKind.LONGROPE},
            turns_part=True,
        )
    )


def build(weights: Weights, config: ModelConfig) -> Decoder:
    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, is_fused=True),
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp", fused="gate_up_proj"),
    )


PHI3 = ModelFamily("phi3", parse, build)
