"""Families of models by the architecture in `config.json`: generating models and classifiers.

The engine registers the computation of a family under the same names (`fairlead_engine.model.families`).
"""

from collections.abc import Callable
from typing import NamedTuple

from fairlead_common.models.families import dense, experts, hybrids, qwen_vl, recurrent
from fairlead_common.models.families.cohere2_moe import parse_cohere2_moe
from fairlead_common.models.families.deepseek import (
    parse_deepseek_v2,
    parse_deepseek_v3,
    parse_deepseek_v32,
    parse_glm4_moe_lite,
    parse_glm_moe_dsa,
)
from fairlead_common.models.families.gemma3 import parse_gemma3_seeing
from fairlead_common.models.families.gemma4 import parse_gemma4
from fairlead_common.models.families.hunyuan import parse_hunyuan_3, parse_hunyuan_dense, parse_hunyuan_moe
from fairlead_common.models.families.lfm import parse_lfm2, parse_lfm2_moe, parse_lfm3
from fairlead_common.models.families.llama4 import parse_llama4
from fairlead_common.models.families.nemotron_h import parse_nemotron_h
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import ModelLoadError, ModelLoadReason
from fairlead_common.models.model_config import ModelConfig

CLASSIFIER = "ForSequenceClassification"
"""Endings of the names of classifying architectures."""
_GENERATES = "ForCausalLM"
_SPELLINGS = {"ExaoneMoEForCausalLM": "ExaoneMoeForCausalLM"}
"""Names in published files → names in transformers."""


class FamilyFields(NamedTuple):
    """What a family's `config.json` says."""

    model_type: str
    """As `model_type` spells it; decides where `architectures` names none."""
    parse: Callable[[JsonFields], ModelConfig]
    """Raises ModelLoadError for fields that do not fit, or have no layer."""


ARCHITECTURES: dict[str, FamilyFields] = {
    "ApertusForCausalLM": FamilyFields("apertus", dense.parse_apertus),
    "ArceeForCausalLM": FamilyFields("arcee", dense.parse_arcee),
    "BambaForCausalLM": FamilyFields("bamba", hybrids.parse_bamba),
    "Cohere2ForCausalLM": FamilyFields("cohere2", dense.parse_cohere2),
    "Cohere2MoeForCausalLM": FamilyFields("cohere2_moe", parse_cohere2_moe),
    "DeepseekV2ForCausalLM": FamilyFields("deepseek_v2", parse_deepseek_v2),
    "DeepseekV3ForCausalLM": FamilyFields("deepseek_v3", parse_deepseek_v3),
    "DeepseekV32ForCausalLM": FamilyFields("deepseek_v32", parse_deepseek_v32),
    "Dots1ForCausalLM": FamilyFields("dots1", experts.parse_dots1),
    "Ernie4_5ForCausalLM": FamilyFields("ernie4_5", dense.parse_ernie4_5),
    "Ernie4_5_MoeForCausalLM": FamilyFields("ernie4_5_moe", experts.parse_ernie4_5_moe),
    "Exaone4ForCausalLM": FamilyFields("exaone4", dense.parse_exaone4),
    "ExaoneMoeForCausalLM": FamilyFields("exaone_moe", experts.parse_exaone_moe),
    "FalconH1ForCausalLM": FamilyFields("falcon_h1", hybrids.parse_falcon_h1),
    "Gemma2ForCausalLM": FamilyFields("gemma2", dense.parse_gemma2),
    "Gemma3ForCausalLM": FamilyFields("gemma3_text", dense.parse_gemma3),
    "Gemma3ForConditionalGeneration": FamilyFields("gemma3", parse_gemma3_seeing),
    "Gemma4ForCausalLM": FamilyFields("gemma4_text", parse_gemma4),
    "Glm4ForCausalLM": FamilyFields("glm4", dense.parse_glm4),
    "Glm4MoeForCausalLM": FamilyFields("glm4_moe", experts.parse_glm4_moe),
    "Glm4MoeLiteForCausalLM": FamilyFields("glm4_moe_lite", parse_glm4_moe_lite),
    "GlmMoeDsaForCausalLM": FamilyFields("glm_moe_dsa", parse_glm_moe_dsa),
    "GptOssForCausalLM": FamilyFields("gpt_oss", experts.parse_gpt_oss),
    "GraniteForCausalLM": FamilyFields("granite", dense.parse_granite),
    "GraniteMoeHybridForCausalLM": FamilyFields("granitemoehybrid", recurrent.parse_granite_hybrid),
    "Llama4ForCausalLM": FamilyFields("llama4_text", parse_llama4),
    "GraniteMoeForCausalLM": FamilyFields("granitemoe", experts.parse_granite_moe),
    "HunYuanDenseV1ForCausalLM": FamilyFields("hunyuan_v1_dense", parse_hunyuan_dense),
    "HunYuanMoEV1ForCausalLM": FamilyFields("hunyuan_v1_moe", parse_hunyuan_moe),
    "HYV3ForCausalLM": FamilyFields("hy_v3", parse_hunyuan_3),
    "Lfm2ForCausalLM": FamilyFields("lfm2", parse_lfm2),
    "Lfm2MoeForCausalLM": FamilyFields("lfm2_moe", parse_lfm2_moe),
    "Lfm3ForCausalLM": FamilyFields("lfm3", parse_lfm3),
    "LlamaForCausalLM": FamilyFields("llama", dense.parse_llama),
    "MiniMaxM2ForCausalLM": FamilyFields("minimax_m2", experts.parse_minimax_m2),
    "Ministral3ForCausalLM": FamilyFields("ministral3", dense.parse_ministral3),
    "MistralForCausalLM": FamilyFields("mistral", dense.parse_mistral),
    "MixtralForCausalLM": FamilyFields("mixtral", experts.parse_mixtral),
    "NemotronHForCausalLM": FamilyFields("nemotron_h", parse_nemotron_h),
    "Olmo2ForCausalLM": FamilyFields("olmo2", dense.parse_olmo2),
    "Olmo3ForCausalLM": FamilyFields("olmo3", dense.parse_olmo3),
    "OlmoeForCausalLM": FamilyFields("olmoe", experts.parse_olmoe),
    "Phi3ForCausalLM": FamilyFields("phi3", dense.parse_phi3),
    "PhimoeForCausalLM": FamilyFields("phimoe", experts.parse_phimoe),
    "Qwen2ForCausalLM": FamilyFields("qwen2", dense.parse_qwen2),
    "Qwen2_5_VLForConditionalGeneration": FamilyFields("qwen2_5_vl", qwen_vl.parse_qwen2_5_vl),
    "Qwen2MoeForCausalLM": FamilyFields("qwen2_moe", experts.parse_qwen2_moe),
    "Qwen3ForCausalLM": FamilyFields("qwen3", dense.parse_qwen3),
    "Qwen3MoeForCausalLM": FamilyFields("qwen3_moe", experts.parse_qwen3_moe),
    "Qwen3NextForCausalLM": FamilyFields("qwen3_next", recurrent.parse_qwen3_next),
    "Qwen3VLForConditionalGeneration": FamilyFields("qwen3_vl", qwen_vl.parse_qwen3_vl),
    "Qwen3VLMoeForConditionalGeneration": FamilyFields("qwen3_vl_moe", qwen_vl.parse_qwen3_vl_moe),
    "Qwen3_5ForCausalLM": FamilyFields("qwen3_5_text", recurrent.parse_qwen3_5),
    "Qwen3_5MoeForCausalLM": FamilyFields("qwen3_5_moe_text", recurrent.parse_qwen3_5_moe),
    "Qwen3_5ForConditionalGeneration": FamilyFields("qwen3_5", qwen_vl.parse_qwen3_5_vl),
    "Qwen3_5MoeForConditionalGeneration": FamilyFields("qwen3_5_moe", qwen_vl.parse_qwen3_5_vl_moe),
    "SeedOssForCausalLM": FamilyFields("seed_oss", dense.parse_seed_oss),
    "SmolLM3ForCausalLM": FamilyFields("smollm3", dense.parse_smollm3),
    "SolarOpenForCausalLM": FamilyFields("solar_open", experts.parse_solar_open),
}
"""As `architectures` in `config.json` spells them."""
_CLASSIFIERS = {
    **{name.replace(_GENERATES, CLASSIFIER): name for name in ARCHITECTURES},
    "Gemma3TextForSequenceClassification": "Gemma3ForCausalLM",
}
"""Models with a classifier in place of the output projection, by the name of the generating model."""
_TRUNKS = {name.replace(_GENERATES, "Model"): name for name in ARCHITECTURES if name.endswith(_GENERATES)}
"""Decoders without an output projection, as embedders are published → names of the generating models."""
_LIKE_BERT = ("Bert", "DistilBert", "ModernBert", "Roberta", "XLMRoberta")
_BOTH_WAYS = "Gemma3TextModel"
"""An encoder where `config.json` says that tokens look both ways."""
ENCODERS = (*(name + end for name in _LIKE_BERT for end in ("Model", CLASSIFIER)), _BOTH_WAYS)
"""Architectures that are computed without a cache."""


def generating(architecture: str) -> str:
    """The name in `ARCHITECTURES` of the result of `find_family`."""
    return _CLASSIFIERS.get(architecture, architecture)


def find_encoder(fields: JsonFields) -> str | None:
    """The first architecture of an encoder in `config.json`; None = no encoder."""
    names = fields.texts("architectures")
    found = next((name for name in ENCODERS if name in names), None)
    return None if found == _BOTH_WAYS and not fields.boolean(dense.BOTH_WAYS, False) else found


def find_family(fields: JsonFields) -> str | None:
    """The first known architecture in `config.json`, a generating architecture before a classifier or a trunk alone; in
    a file without architectures `model_type` decides."""
    names = [_SPELLINGS.get(name, name) for name in fields.texts("architectures")]
    model_type = fields.text("model_type")
    for name, family in ARCHITECTURES.items():
        if name in names or (not names and family.model_type == model_type):
            return name
    known = _CLASSIFIERS.keys() | _TRUNKS.keys()
    return next((_TRUNKS.get(name, name) for name in names if name in known), None)


def find_architecture(fields: JsonFields) -> str:
    """As `find_family`. Raises ModelLoadError with reason UnsupportedArchitecture and a list of supported families."""
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
