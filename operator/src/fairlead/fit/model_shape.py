"""The shape of a model that the engine is to run, from its `config.json`; and whether ranks can divide it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fairlead_protocol.models.families.registry import ARCHITECTURES, CLASSIFIER, ENCODERS, find_family
from fairlead_protocol.models.json_fields import JsonFields
from fairlead_protocol.models.load_errors import ModelLoadError, ModelLoadReason
from fairlead_protocol.models.model_config import ModelConfig


def read_shape(config: object) -> ModelConfig:
    """The model that a parsed `config.json` describes. Raises ModelLoadError, naming the field, for what the engine
    would refuse, and for an architecture that is not reckoned."""
    if not isinstance(config, Mapping):
        raise ModelLoadError(ModelLoadReason.MODEL_CONFIG_INVALID, "config.json must hold a JSON object")
    fields = JsonFields(Path("config.json"), dict(config))
    name = find_family(fields)
    if name not in ARCHITECTURES:
        raise ModelLoadError(
            ModelLoadReason.UNSUPPORTED_ARCHITECTURE, f"config.json: architectures: {_unknown(fields)}"
        )
    return replace(ARCHITECTURES[name].parse(fields), architecture=name)


def _unknown(fields: JsonFields) -> str:
    named = fields.texts("architectures")
    told = ", ".join(named) or fields.text("model_type") or "nothing"
    if any(CLASSIFIER in each or each in ENCODERS for each in named):
        return f"names {told}, which is an encoder or a classifier: those are not reckoned, only what generates is"
    known = ", ".join(ARCHITECTURES)
    return (
        f"names {told}, which is none of the families that the engine computes itself ({known}); it may run through "
        "transformers' code, and what that takes is not reckoned"
    )


def undivided(shape: ModelConfig, ranks: int) -> str:
    """Why the model cannot be divided among so many ranks; empty = it can."""
    heads, kv_heads = shape.num_heads, shape.num_kv_heads
    if ranks > 1 and shape.vision is not None:
        return "and a model that sees images is not divided"
    if heads % ranks:
        return f"which does not divide the model's {heads} attention heads (num_attention_heads)"
    if kv_heads % ranks and ranks % kv_heads:
        named = f"{kv_heads} heads of keys and values (num_key_value_heads)"
        return f"which neither divides the model's {named} nor is a multiple of them"
    for name, size in shape.inner_sizes.items():
        if size % ranks:
            return f"which does not divide the model's {name}, {size}"
    return ""
