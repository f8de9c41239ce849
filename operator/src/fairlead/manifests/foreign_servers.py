"""The servers that are not ours, by `engine.type`, and what each is told. llama.cpp's images start it by themselves."""

import json
from collections.abc import Mapping
from typing import Any

from fairlead.api.llmdeployment import EngineType, KvCacheDtype, LLMDeployment, ReasoningParser, ToolCallParser
from fairlead.manifests.foreign_pod import EVENTS, OF_PYTHON, SERVER_PORT, ForeignServer, unless, words

_MIB = 2**20
_LLAMA_CPP_KV_TYPES: Mapping[str, str | None] = {"auto": None, "int8": "q8_0"}
_SGLANG_BLOCK_SIZE = 16
"""Its own default is 1: every token would be a block of its own."""
_SGLANG_KV_TYPES: Mapping[str, str | None] = {KvCacheDtype.AUTO: None, KvCacheDtype.FP8: "fp8_e4m3"}
_SGLANG_TOOL_CALL_PARSERS: Mapping[str, str] = {
    ToolCallParser.HERMES: "hermes",
    ToolCallParser.LLAMA3_JSON: "llama3",
    ToolCallParser.MISTRAL: "mistral",
    ToolCallParser.DEEPSEEK_V3: "deepseekv3",
    ToolCallParser.HARMONY: "gpt-oss",
    ToolCallParser.GLM45: "glm45",
    ToolCallParser.QWEN3_CODER: "qwen3_coder",
    ToolCallParser.MINIMAX_M2: "minimax-m2",
}
"""By our names, its own. What is not here is left to it."""


def _vllm_arguments(deployment: LLMDeployment, model: str) -> list[str]:
    spec, engine = deployment.spec, deployment.spec.engine
    flags: dict[str, object] = {
        "served-model-name": spec.model.served_name,
        "dtype": str(engine.dtype),
        "tensor-parallel-size": engine.tensor_parallel_size if engine.tensor_parallel_size > 1 else None,
        "max-model-len": engine.max_model_len,
        "max-num-seqs": VLLM.num_seqs(deployment),
        "max-num-batched-tokens": VLLM.num_batched_tokens(deployment),
        "block-size": engine.kv_cache.block_size,
        "kv-cache-memory-bytes": engine.kv_cache.memory,
        "kv-cache-dtype": unless(engine.kv_cache.dtype, "auto"),
        "reasoning-parser": unless(engine.reasoning_parser, ReasoningParser.AUTO, ReasoningParser.NONE),
        "tool-call-parser": unless(engine.tool_call_parser, ToolCallParser.AUTO, ToolCallParser.NONE),
        "scheduling-policy": "priority",
        "host": "$(POD_IP)",
        "port": SERVER_PORT,
    }
    said = ["serve", model, *words(flags)]
    if engine.tool_call_parser not in (ToolCallParser.AUTO, ToolCallParser.NONE):
        said.append("--enable-auto-tool-choice")
    said.append("--enable-prompt-tokens-details")
    said.append("--enable-prefix-caching" if engine.enable_prefix_caching else "--no-enable-prefix-caching")
    if engine.enable_prefix_caching:
        said += [
            "--kv-events-config.enable_kv_cache_events=true",
            "--kv-events-config.publisher=zmq",
            f"--kv-events-config.endpoint={EVENTS}",
            f"--kv-events-config.replay_endpoint={EVENTS}-replay",
        ]
    return said


VLLM = ForeignServer(
    kind="vllm",
    command=("vllm",),
    arguments=_vllm_arguments,
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    tells_blocks=True,
    environment={**OF_PYTHON, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
)


def _llama_cpp_arguments(deployment: LLMDeployment, model: str) -> list[str]:
    spec, engine = deployment.spec, deployment.spec.engine
    kv_type = _LLAMA_CPP_KV_TYPES[engine.kv_cache.dtype]
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


def _llama_cpp_front_flags(deployment: LLMDeployment) -> Mapping[str, Any]:
    return {"block-size": deployment.spec.engine.kv_cache.block_size}


LLAMA_CPP = ForeignServer(
    kind="llama-cpp",
    command=(),
    arguments=_llama_cpp_arguments,
    max_num_seqs=4,
    max_num_batched_tokens=2048,
    tells_blocks=False,
    front_flags=_llama_cpp_front_flags,
    file_of_a_download="model.gguf",
    environment={"HOME": "/tmp"},
)


def _sglang_arguments(deployment: LLMDeployment, model: str) -> list[str]:
    spec, engine = deployment.spec, deployment.spec.engine
    flags: dict[str, object] = {
        "model-path": model,
        "served-model-name": spec.model.served_name,
        "dtype": str(engine.dtype),
        "tp-size": engine.tensor_parallel_size if engine.tensor_parallel_size > 1 else None,
        "context-length": engine.max_model_len,
        "max-running-requests": SGLANG.num_seqs(deployment),
        "chunked-prefill-size": SGLANG.num_batched_tokens(deployment),
        "page-size": engine.kv_cache.block_size or _SGLANG_BLOCK_SIZE,
        "kv-cache-dtype": _SGLANG_KV_TYPES[engine.kv_cache.dtype],
        "tool-call-parser": _SGLANG_TOOL_CALL_PARSERS.get(engine.tool_call_parser),
        "reasoning-parser": unless(engine.reasoning_parser, ReasoningParser.AUTO, ReasoningParser.NONE),
        # A request that says nothing would come after all that do.
        "default-priority-value": 0,
        "host": "$(POD_IP)",
        "port": SERVER_PORT,
    }
    said = ["serve", *words(flags), "--enable-priority-scheduling", "--schedule-low-priority-values-first"]
    said += ["--enable-metrics", "--enable-cache-report"]
    if engine.enable_prefix_caching:
        events = {"publisher": "zmq", "endpoint": EVENTS, "replay_endpoint": f"{EVENTS}-replay"}
        said += ["--kv-events-config", json.dumps(events)]
    else:
        said.append("--disable-radix-cache")
    return said


SGLANG = ForeignServer(
    kind="sglang",
    command=("sglang",),
    arguments=_sglang_arguments,
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    tells_blocks=True,
    environment={
        **OF_PYTHON,
        # Else each look at /health takes a second and computes a token; its own watchdog ends a server that hangs.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
    },
)

FOREIGN_SERVERS: Mapping[EngineType, ForeignServer] = {
    EngineType.VLLM: VLLM,
    EngineType.LLAMA_CPP: LLAMA_CPP,
    EngineType.SGLANG: SGLANG,
}
