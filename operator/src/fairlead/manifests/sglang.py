"""SGLang's server: what it is told."""

import json
from collections.abc import Mapping

from fairlead.api.llmdeployment import KvCacheDtype, LLMDeployment, ReasoningParser, ToolCallParser
from fairlead.manifests.foreign_pod import EVENTS, OF_PYTHON, SERVER_PORT, ForeignServer, unless, words

_BLOCK_SIZE = 16
"""Its own default is 1: every token would be a block of its own."""
_KV_TYPES: Mapping[str, str | None] = {KvCacheDtype.AUTO: None, KvCacheDtype.FP8: "fp8_e4m3"}
_TOOL_CALL_PARSERS: Mapping[str, str] = {
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


def _arguments(deployment: LLMDeployment, model: str) -> list[str]:
    spec, engine = deployment.spec, deployment.spec.engine
    flags: dict[str, object] = {
        "model-path": model,
        "served-model-name": spec.model.served_name,
        "dtype": str(engine.dtype),
        "tp-size": engine.tensor_parallel_size if engine.tensor_parallel_size > 1 else None,
        "context-length": engine.max_model_len,
        "max-running-requests": SGLANG.num_seqs(deployment),
        "chunked-prefill-size": SGLANG.num_batched_tokens(deployment),
        "page-size": engine.kv_cache.block_size or _BLOCK_SIZE,
        "kv-cache-dtype": _KV_TYPES[engine.kv_cache.dtype],
        "tool-call-parser": _TOOL_CALL_PARSERS.get(engine.tool_call_parser),
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
    arguments=_arguments,
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    tells_blocks=True,
    environment={
        **OF_PYTHON,
        # Else each look at /health takes a second and computes a token; its own watchdog ends a server that hangs.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
    },
)
