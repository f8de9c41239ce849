"""How each family of models is built from a checkpoint's tensors, by the names that `ARCHITECTURES` has."""

from collections.abc import Callable
from typing import Any

from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families import (
    deepseek,
    gemma2,
    gemma3,
    gpt_oss,
    llama,
    mixtral,
    olmo2,
    phi3,
    qwen2_5_vl,
    qwen2_moe,
    qwen3,
    qwen3_moe,
)
from fairlead_engine.model.weights import Weights
from fairlead_protocol.models.families.registry import generating

BUILDERS: dict[str, Callable[[Weights, Any], Decoder]] = {
    "DeepseekV2ForCausalLM": deepseek.build,
    "DeepseekV3ForCausalLM": deepseek.build,
    "Gemma2ForCausalLM": gemma2.build,
    "Gemma3ForCausalLM": gemma3.build,
    "GptOssForCausalLM": gpt_oss.build,
    "LlamaForCausalLM": llama.build,
    "MistralForCausalLM": llama.build,
    "MixtralForCausalLM": mixtral.build,
    "Olmo2ForCausalLM": olmo2.build,
    "Olmo3ForCausalLM": olmo2.build,
    "Phi3ForCausalLM": phi3.build,
    "Qwen2ForCausalLM": llama.build,
    "Qwen2_5_VLForConditionalGeneration": qwen2_5_vl.build,
    "Qwen2MoeForCausalLM": qwen2_moe.build,
    "Qwen3ForCausalLM": qwen3.build,
    "Qwen3MoeForCausalLM": qwen3_moe.build,
}
"""Each raises ModelLoadError, naming the tensor that does not fit."""


def builder_of(architecture: str) -> Callable[[Weights, Any], Decoder]:
    """Of what `find_architecture` has found."""
    return BUILDERS[generating(architecture)]
