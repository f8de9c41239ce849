"""vLLM's server: what it is told."""

from fairlead.api.llmdeployment import LLMDeployment, ReasoningParser, ToolCallParser
from fairlead.manifests.foreign_pod import EVENTS, OF_PYTHON, SERVER_PORT, ForeignServer, unless, words


def _arguments(deployment: LLMDeployment, model: str) -> list[str]:
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
    arguments=_arguments,
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    tells_blocks=True,
    environment={**OF_PYTHON, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
)
