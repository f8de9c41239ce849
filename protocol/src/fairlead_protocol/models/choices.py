"""Values that both `spec.engine` and the engine's flags may have: each enumeration once.

What a value does is the engine's: each of its registries (formats of weights, of tool calls, of reasoning, of the KV
cache) covers one of these.
"""

from enum import StrEnum


class DeviceKind(StrEnum):
    """Where an engine computes."""

    CPU = "cpu"
    CUDA = "cuda"


class Dtype(StrEnum):
    """Number format of weights and activations."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Quantization(StrEnum):
    """Format that weights are rounded to while they are loaded."""

    INT8 = "int8"
    INT8_WEIGHT_ONLY = "int8-weight-only"
    INT4_WEIGHT_ONLY = "int4-weight-only"
    FP8 = "fp8"


class KvCacheDtype(StrEnum):
    """Number format of keys and values in the KV cache."""

    AUTO = "auto"
    FP8 = "fp8"
    INT8 = "int8"


class ToolCallParser(StrEnum):
    """How a model writes calls of tools."""

    AUTO = "auto"
    NONE = "none"
    HERMES = "hermes"
    LLAMA3_JSON = "llama3_json"
    MISTRAL = "mistral"
    DEEPSEEK_V3 = "deepseek_v3"
    HARMONY = "harmony"
    GLM45 = "glm45"
    QWEN3_CODER = "qwen3_coder"
    MINIMAX_M2 = "minimax_m2"


class ReasoningParser(StrEnum):
    """How a model writes its reasoning."""

    AUTO = "auto"
    NONE = "none"
    THINK = "think"
    MISTRAL = "mistral"


class SpeculativeMethod(StrEnum):
    """What drafts the tokens that a step verifies."""

    NGRAM = "ngram"
    DRAFT = "draft"
    MEDUSA = "medusa"
    EAGLE3 = "eagle3"
