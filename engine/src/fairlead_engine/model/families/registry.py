"""The families of models by the architecture that `config.json` names, and their classifiers."""

from typing import Any

from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.encoders.encoder_registry import ENCODERS, find_encoder
from fairlead_engine.model.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from fairlead_engine.model.families.family import ModelFamily
from fairlead_engine.model.families.gemma2 import GEMMA2
from fairlead_engine.model.families.gemma3 import GEMMA3
from fairlead_engine.model.families.gpt_oss import GPT_OSS
from fairlead_engine.model.families.llama import LLAMA
from fairlead_engine.model.families.mistral import MISTRAL
from fairlead_engine.model.families.mixtral import MIXTRAL
from fairlead_engine.model.families.olmo2 import OLMO2
from fairlead_engine.model.families.olmo3 import OLMO3
from fairlead_engine.model.families.phi3 import PHI3
from fairlead_engine.model.families.qwen2 import QWEN2
from fairlead_engine.model.families.qwen2_5_vl import QWEN2_5_VL
from fairlead_engine.model.families.qwen2_moe import QWEN2_MOE
from fairlead_engine.model.families.qwen3 import QWEN3
from fairlead_engine.model.families.qwen3_moe import QWEN3_MOE
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.task import CLASSIFIER

ARCHITECTURES: dict[str, ModelFamily[Any]] = {
    "DeepseekV2ForCausalLM": DEEPSEEK_V2,
    "DeepseekV3ForCausalLM": DEEPSEEK_V3,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "GptOssForCausalLM": GPT_OSS,
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "MixtralForCausalLM": MIXTRAL,
    "Olmo2ForCausalLM": OLMO2,
    "Olmo3ForCausalLM": OLMO3,
    "Phi3ForCausalLM": PHI3,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen2_5_VLForConditionalGeneration": QWEN2_5_VL,
    "Qwen2MoeForCausalLM": QWEN2_MOE,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
}
"""As `architectures` in `config.json` spells them."""
_GENERATES = "ForCausalLM"
_CLASSIFIERS = {
    **{name.replace(_GENERATES, CLASSIFIER): name for name in ARCHITECTURES},
    "Gemma3TextForSequenceClassification": "Gemma3ForCausalLM",
}
"""The same models with a classifier in place of the output projection, by the name of those that generate."""


def family_of(architecture: str) -> ModelFamily[Any]:
    """Of what `find_architecture` has found."""
    return ARCHITECTURES[_CLASSIFIERS.get(architecture, architecture)]


def find_family(fields: JsonFields) -> str | None:
    """The first architecture that `config.json` names and we know, one that generates before a classifier; its
    `model_type` decides when it names none."""
    names, model_type = fields.texts("architectures"), fields.text("model_type")
    for name, family in ARCHITECTURES.items():
        if name in names or (not names and family.model_type == model_type):
            return name
    return next((name for name in _CLASSIFIERS if name in names), None)


def find_architecture(fields: JsonFields) -> str:
    """The same. Raises ModelLoadError with reason UnsupportedArchitecture, which lists what is supported."""
    if (encoder := find_encoder(fields)) is not None:
        raise ModelLoadError(
            ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
            f"config.json names {encoder}, an encoder: it makes vectors of texts, or classifies them, and generates "
            "none, which is needed here",
        )
    if (name := find_family(fields)) is not None:
        return name
    raise ModelLoadError(
        ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
        f"{named_architecture(fields)}; supported are {', '.join((*ARCHITECTURES, *ENCODERS))}. Choose a model of one "
        "of these.",
    )


def named_architecture(fields: JsonFields) -> str:
    """What `config.json` names, in words."""
    named = ", ".join(fields.texts("architectures")) or fields.text("model_type") or "none"
    return f"config.json names the architecture {named}"
