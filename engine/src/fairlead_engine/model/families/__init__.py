"""The construction of decoders from a checkpoint's tensors, by the names in `ARCHITECTURES`.

One file for each kind of family, with its differences from the shared layers.
"""

from collections.abc import Callable
from typing import Any

from fairlead_common.models.families.registry import ARCHITECTURES, generating
from fairlead_common.models.model_config import ModelConfig
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families import (
    deepseek,
    dense,
    experts,
    gemma3,
    gemma4,
    hybrids,
    lfm,
    nemotron_h,
    qwen_vl,
    recurrent,
)
from fairlead_engine.model.weights import Weights

BUILDERS: dict[str, Callable[[Weights, Any], Decoder]] = {
    "ApertusForCausalLM": dense.build_apertus,
    "ArceeForCausalLM": dense.build_arcee,
    "BambaForCausalLM": hybrids.build_bamba,
    "Cohere2ForCausalLM": dense.build_cohere2,
    "Cohere2MoeForCausalLM": experts.build_cohere2,
    "DeepseekV3ForCausalLM": deepseek.build,
    "Dots1ForCausalLM": experts.build_routed,
    "Ernie4_5_MoeForCausalLM": experts.build_ernie4_5,
    "ExaoneMoeForCausalLM": experts.build_exaone_moe,
    "FalconH1ForCausalLM": hybrids.build_falcon_h1,
    "Gemma2ForCausalLM": dense.build_gemma,
    "Gemma3ForConditionalGeneration": gemma3.build,
    "Gemma4ForCausalLM": gemma4.build,
    "Glm4ForCausalLM": dense.build_glm4,
    "Glm4MoeForCausalLM": deepseek.build_glm4_moe,
    "GptOssForCausalLM": experts.build_gpt_oss,
    "GraniteMoeHybridForCausalLM": recurrent.build_granite_hybrid,
    "GraniteMoeForCausalLM": experts.build_granite,
    "HunYuanMoEV1ForCausalLM": experts.build_hunyuan,
    "HYV3ForCausalLM": experts.build_hunyuan_3,
    "Lfm2ForCausalLM": lfm.build_lfm2,
    "Lfm3ForCausalLM": lfm.build_lfm3,
    "Llama4ForCausalLM": experts.build_llama4,
    "LlamaForCausalLM": dense.build,
    "MiniMaxM2ForCausalLM": experts.build_minimax_m2,
    "MixtralForCausalLM": experts.build_mixtral,
    "NemotronHForCausalLM": nemotron_h.build_nemotron_h,
    "Olmo2ForCausalLM": dense.build_olmo,
    "Phi3ForCausalLM": dense.build_phi3,
    "Qwen2_5_VLForConditionalGeneration": qwen_vl.build_2_5,
    "Qwen2MoeForCausalLM": experts.build_qwen,
    "Qwen3NextForCausalLM": recurrent.build_qwen,
    "Qwen3VLForConditionalGeneration": qwen_vl.build,
    "Qwen3VLMoeForConditionalGeneration": qwen_vl.build_experts,
    "Qwen3_5ForConditionalGeneration": qwen_vl.build_recurrent,
}
"""Each raises ModelLoadError, naming the tensor that does not fit; of other families `built_as` says how."""


def build_decoder(weights: Weights, config: ModelConfig) -> Decoder:
    """Raises ModelLoadError, naming the tensor that does not fit."""
    name = generating(config.architecture)
    return BUILDERS[ARCHITECTURES[name].built_as or name](weights, config)
