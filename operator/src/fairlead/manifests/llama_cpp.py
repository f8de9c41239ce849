"""llama.cpp's server: what it is told. Its images start it by themselves."""

from collections.abc import Mapping
from typing import Any

from fairlead.api.llmdeployment import LLMDeployment, ReasoningParser
from fairlead.manifests.foreign_pod import SERVER_PORT, ForeignServer, words

_MIB = 2**20
_KV_TYPES: Mapping[str, str | None] = {"auto": None, "int8": "q8_0"}


def _arguments(deployment: LLMDeployment, model: str) -> list[str]:
    spec, engine = deployment.spec, deployment.spec.engine
    kv_type = _KV_TYPES[engine.kv_cache.dtype]
    num_slots = LLAMA_CPP.num_seqs(deployment)
    flags: dict[str, object] = {
        "model": model,
        "alias": spec.model.served_name,
        # Each slot has its share of the context, and keeps it.
        "ctx-size": (engine.max_model_len or 0) * num_slots,
        "parallel": num_slots,
        "batch-size": LLAMA_CPP.num_batched_tokens(deployment),
        "cache-type-k": kv_type,
        "cache-type-v": kv_type,
        # What no slot has any more, in the host's memory: its own default is 8 GiB, which pods are not told of.
        "cache-ram": (engine.kv_cache.memory or 0) // _MIB,
        "reasoning-format": "none" if engine.reasoning_parser == ReasoningParser.NONE else None,
        "host": "$(POD_IP)",
        "port": SERVER_PORT,
    }
    return [
        *words(flags),
        "--no-kv-unified",
        "--metrics",
        "--cache-prompt" if engine.enable_prefix_caching else "--no-cache-prompt",
    ]


def _front_flags(deployment: LLMDeployment) -> Mapping[str, Any]:
    return {"block-size": deployment.spec.engine.kv_cache.block_size}


LLAMA_CPP = ForeignServer(
    kind="llama-cpp",
    command=(),
    arguments=_arguments,
    max_num_seqs=4,
    max_num_batched_tokens=2048,
    tells_blocks=False,
    front_flags=_front_flags,
    file_of_a_download="model.gguf",
    environment={"HOME": "/tmp"},
)
