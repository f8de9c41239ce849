"""A tiny model of a family, by which all tests of families try it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairlead_common.models.families.registry import ARCHITECTURES
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.model_config import ModelConfig

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
"""Stretched positions as Llama 3 has them, for `rope_scaling`."""


@dataclass(frozen=True, slots=True)
class TinyFamily:
    """An entry of `FAMILIES` in a module of this package."""

    name: str
    fields: Callable[..., dict[str, Any]]
    """The `config.json` of a tiny model, with changes by keyword."""
    calls: str | None = None
    """How the chat templates of its models write calls of tools, of `family_trials.CALLS`; None = they know none."""
    gguf: str | None = None
    """Its name in `gguf.MODEL_ARCH`; None = llama.cpp has no such architecture."""
    shapes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Changes that make odd models, by what is odd; compared with transformers in `tests/engine/runner`."""

    def __call__(self, **changes: Any) -> dict[str, Any]:
        return self.fields(**changes)

    @property
    def config(self) -> ModelConfig:
        """What the engine reads of the tiny model."""
        fields = self.fields()
        name = fields["architectures"][0]
        return replace(ARCHITECTURES[name].parse(JsonFields(Path("config.json"), fields)), architecture=name)


def tiny_fields(architecture: str, model_type: str, **own: Any) -> dict[str, Any]:
    """The fields that each tiny model has, with its own."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "float32",
        **own,
    }
