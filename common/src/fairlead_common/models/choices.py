"""Values of `spec.engine` and of the flags of an engine, each enumeration once, and the defaults of an engine.

The engine defines the meaning of a value: each registry of the engine (formats of weights, of tool calls, of
reasoning, of the KV cache) covers one enumeration.
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
    """Format of weights that are rounded at loading."""

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
    SEED_OSS = "seed_oss"
    KIMI_K2 = "kimi_k2"
    DEEPSEEK_V32 = "deepseek_v32"
    HUNYUAN_A13B = "hunyuan_a13b"
    HY_V3 = "hy_v3"
    COHERE_COMMAND3 = "cohere_command3"
    GRANITE = "granite"
    PHI4_MINI_JSON = "phi4_mini_json"
    NEMOTRON = "nemotron"
    LFM2 = "lfm2"
    OLMO3 = "olmo3"
    GEMMA4 = "gemma4"
    GIGACHAT3 = "gigachat3"
    SOLAR_OPEN = "solar_open"
    APERTUS = "apertus"
    FUNCTIONARY = "functionary"
    PYTHONIC = "pythonic"


class ReasoningParser(StrEnum):
    """How a model writes its reasoning."""

    AUTO = "auto"
    NONE = "none"
    THINK = "think"
    MISTRAL = "mistral"
    SEED_OSS = "seed_oss"
    GRANITE = "granite"
    HUNYUAN_A13B = "hunyuan_a13b"
    HY_V3 = "hy_v3"
    COHERE_COMMAND3 = "cohere_command3"
    GEMMA4 = "gemma4"
    MINIMAX_M3 = "minimax_m3"
    SOLAR_OPEN = "solar_open"


class SpeculativeMethod(StrEnum):
    """What drafts the tokens that a step verifies."""

    NGRAM = "ngram"
    DRAFT = "draft"
    MEDUSA = "medusa"
    EAGLE3 = "eagle3"
    MTP = "mtp"


_NUM_SEQS = {DeviceKind.CPU: 32, DeviceKind.CUDA: 256}
_BATCHED_TOKENS = {DeviceKind.CPU: 512, DeviceKind.CUDA: 8192}
BLOCK_SIZE = 16
"""Tokens per block of the KV cache."""
NUM_ADAPTERS = 4
"""Adapters with room on the device, where any may be loaded."""
ADAPTER_RANK = 16
"""Largest rank of an adapter."""
ADAPTER_EXPERT_RANK = 8
"""Largest rank of what an adapter changes of experts, or that of adapters where it is lower."""
UTILIZATION = 0.9
"""Share of a GPU's memory that weights, KV cache and work space may take together."""
LEAST_UTILIZATION = 0.01
"""Smallest such share that is accepted."""
CPU_CACHE_BYTES = 2**30
"""Largest KV cache on a CPU without `kv_cache_memory`."""
CPU_CACHE_SHARE = 0.4
"""Share of free memory for the KV cache on a CPU; weights and page cache take from the same memory."""
LEAST_LOWERED = 2048
"""Least tokens of a lowered context, without `max_model_len`; chats find no room in a shorter context."""
LOWERED_MULTIPLE = 256
"""Divisor of a lowered context: replicas with nearly equal memory have equal contexts."""


def step_limits(
    device: str, max_num_seqs: int | None, max_num_batched_tokens: int | None, whole_prompt: int = 0
) -> tuple[int, int]:
    """Sequences and tokens of one step; None = not set. `device`: a `DeviceKind`. `whole_prompt`: tokens of a prompt
    within one step, of models that see prompts whole."""
    kind = DeviceKind(device)
    num_seqs = max_num_seqs or min(_NUM_SEQS[kind], max_num_batched_tokens or _NUM_SEQS[kind])
    return num_seqs, max_num_batched_tokens or max(_BATCHED_TOKENS[kind], num_seqs, whole_prompt)
