"""Gemma 2 (arXiv 2408.00118): normalises before and after both parts of a layer, bends scores and logits, and sees a
window in every other layer. Normalisations are stored as what they differ from 1 by."""

from functools import partial
from typing import Any

from fairlead_engine.kernels.gates import gelu_mul
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.family import ModelFamily
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.model_config import ModelConfig, parse_shape
from fairlead_engine.model.weights import NormNames, Weights
from fairlead_engine.model.windows import windows_alternating

NORMS = NormNames(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)


def gemma_shape(fields: JsonFields, *, every: int) -> dict[str, Any]:
    """What Gemma 2 and 3 have in common; one in `every` layers sees all."""
    shape = parse_shape(
        fields,
        num_kv_heads=4,
        head_dim=256,
        windows=partial(windows_alternating, default=4096, every=every),
        activation="gelu_pytorch_tanh",
        tie_word_embeddings=True,
    )
    scale = fields.positive_number("query_pre_attn_scalar", 256.0)
    extras = {"norm_offset": 1.0, "query_scale": (shape["head_dim"] / scale) ** 0.5}
    return {**shape, **extras, "embedding_scale": shape["hidden_size"] ** 0.5}


def parse(fields: JsonFields) -> ModelConfig:
    return ModelConfig(
        **gemma_shape(fields, every=2),
        soft_cap=soft_cap(fields, "attn_logit_softcapping", 50.0),
        logit_soft_cap=soft_cap(fields, "final_logit_softcapping", 30.0),
    )


def soft_cap(fields: JsonFields, name: str, default: float) -> float:
    """0 where the file says null."""
    if not fields.names(name):
        return default
    return fields.positive_number(name) if fields.has(name) else 0.0


def build(weights: Weights, config: ModelConfig) -> Decoder:
    return weights.decoder(
        attention=weights.attention,
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp", combine=gelu_mul),
        norms=NORMS,
    )


GEMMA2 = ModelFamily("gemma2", parse, build)
