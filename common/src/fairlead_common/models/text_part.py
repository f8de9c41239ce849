"""Fields of the decoder in a checkpoint that also reads images or sounds.

A decoder with a family here is served by itself, whatever reads the rest. Of three equal coordinates (M-RoPE) each is
the position, so that rotations of text are those of the plain family.
"""

from typing import Any

from fairlead_common.models.families.dense import GEMMA3_DEFAULTS
from fairlead_common.models.families.registry import ARCHITECTURES, find_family
from fairlead_common.models.json_fields import JsonFields

_SECTION = "text_config"
_CHANGES: dict[str, dict[str, Any]] = {
    "gemma4_unified_text": {
        "model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "enable_moe_block": False,
    },
    "kimi_k2": {"model_type": "deepseek_v3"},
    "glm4v_text": {"model_type": "glm4"},
    "glm4v_moe_text": {"model_type": "glm4_moe"},
    "qwen2_vl_text": {"model_type": "qwen2"},
}  # fmt: skip
"""`model_type` of a decoder that has another within such a checkpoint → fields of the same decoder by itself."""
_DEFAULTS: dict[str, dict[str, int]] = {
    "gemma3_text": GEMMA3_DEFAULTS,
    "gemma4_text": {
        "vocab_size": 262_144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
        "num_attention_heads": 8, "max_position_embeddings": 131_072,
    },
    "gemma4_unified_text": {"max_position_embeddings": 262_144, "sliding_window": 1024},
    "llama": {
        "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "llama4_text": {
        "vocab_size": 202_048, "hidden_size": 5120, "intermediate_size": 8192, "num_hidden_layers": 48,
        "num_attention_heads": 40, "max_position_embeddings": 131_072,
    },
    "ministral3": {
        "vocab_size": 131_072, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 34,
        "num_attention_heads": 32, "max_position_embeddings": 262_144,
    },
    "mistral4": {
        "vocab_size": 131_072, "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "max_position_embeddings": 1_048_576,
    },
    "mistral": {
        "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 131_072,
    },
}  # fmt: skip
"""Values of transformers' classes, which such files leave out; a decoder's own file states all."""


def decoder_fields(fields: JsonFields) -> JsonFields:
    """Fields of the decoder by itself, for a checkpoint that reads more than text and has no family here; else
    `fields`."""
    section = None if find_family(fields) is not None else fields.section(_SECTION)
    if section is None:
        return fields
    model_type = section.text("model_type") or ""
    changes = {"model_type": model_type, **_CHANGES.get(model_type, {})}
    for name, family in ARCHITECTURES.items():
        if family.model_type == changes["model_type"]:
            defaults = {**_DEFAULTS.get(family.model_type, {}), **_DEFAULTS.get(model_type, {})}
            return fields.with_section(_SECTION, defaults, {**changes, "architectures": [name]})
    return fields
