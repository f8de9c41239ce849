"""vLLM's server in an engine's pod, and the front before it that makes an engine of it (`fairlead-engine front`): what
each is started with. The rest of the pod is as for our engine (`engine.py`)."""

from collections.abc import Mapping
from typing import Any

from fairlead.api import names
from fairlead.api.durations import format_duration
from fairlead.api.llmdeployment import LLMDeployment, ReasoningParser, ToolCallParser
from fairlead.manifests.source import ModelSource
from fairlead.operator_settings import OperatorSettings

SERVER_PORT = 8001
"""Of the server; the front has the engine's port, which is the only one that a NetworkPolicy lets others reach."""
MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 8192
"""What both are told where the spec leaves it open: the front tells gateways, and must not be mistaken."""
_EVENTS = "ipc://@fairlead-kv-$(POD_NAME)"
"""A name, not a port: in the pod's own network, where nobody else is."""
_PATH_DRAINED = "/fairlead/v1/drained"
_HEALTH = {"path": "/health", "port": SERVER_PORT, "scheme": "HTTP"}
_OF_THE_POD = ("POD_IP", "POD_NAME")
"""Variables that the arguments use."""
FRONT_REQUESTS = {"cpu": "100m", "memory": "256Mi"}
"""Of the front: it needs a CPU where a thousand streams pass, and takes what there is."""
_ENVIRONMENT: Mapping[str, str] = {
    "HOME": "/tmp",
    "USER": "vllm",  # who runs it is in no list of users
    "HF_HUB_OFFLINE": "1",  # the model is a folder
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


def with_front(
    pod: Mapping[str, Any], deployment: LLMDeployment, settings: OperatorSettings, source: ModelSource
) -> dict[str, Any]:
    """A pod of our engine as one of vLLM's server with a front before it. Whether it is ready the front says, at the
    port that others ask; whether the server has started and lives, the kubelet asks the server itself."""
    (engine,) = (each for each in pod["containers"] if each["name"] == names.ENGINE_CONTAINER)
    front = {
        **engine,
        "name": names.FRONT_CONTAINER,
        "image": settings.engine_image,
        "args": _front_arguments(deployment, source),
        "env": [each for each in engine["env"] if each["name"] in _OF_THE_POD],
        "resources": {"requests": dict(FRONT_REQUESTS)},
    }
    command, arguments = _server_command(deployment, source)
    given = {each["name"] for each in engine["env"]}
    server = {
        **engine,
        "command": command,
        "args": arguments,
        "env": [
            *engine["env"],
            *({"name": name, "value": value} for name, value in _ENVIRONMENT.items() if name not in given),
        ],
        "startupProbe": engine["startupProbe"] | {"httpGet": _HEALTH},
        "livenessProbe": engine["livenessProbe"] | {"httpGet": _HEALTH, "failureThreshold": 6},
        # SIGTERM comes to the server when its front has drained: until then it would cut what runs.
        "lifecycle": {"preStop": {"httpGet": {"path": _PATH_DRAINED, "port": names.ENGINE_PORT, "scheme": "HTTP"}}},
    }
    del server["readinessProbe"], server["ports"]
    # The image of the user's is the server's; what downloads is ours.
    downloads = [each | {"image": settings.engine_image} for each in pod.get("initContainers") or ()]
    made = {**pod, "containers": [server, front]}
    return made | ({"initContainers": downloads} if downloads else {})


def _server_command(deployment: LLMDeployment, source: ModelSource) -> tuple[list[str], list[str]]:
    """Command and arguments of the server's container."""
    spec, engine = deployment.spec, deployment.spec.engine
    flags: dict[str, object] = {
        "served-model-name": spec.model.served_name,
        "dtype": str(engine.dtype),
        "tensor-parallel-size": engine.tensor_parallel_size if engine.tensor_parallel_size > 1 else None,
        "max-model-len": engine.max_model_len,
        "max-num-seqs": engine.max_num_seqs or MAX_NUM_SEQS,
        "max-num-batched-tokens": engine.max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS,
        "block-size": engine.kv_cache.block_size,
        "kv-cache-memory-bytes": engine.kv_cache.memory,
        "kv-cache-dtype": None if engine.kv_cache.dtype == "auto" else str(engine.kv_cache.dtype),
        "reasoning-parser": _unless(engine.reasoning_parser, ReasoningParser.AUTO, ReasoningParser.NONE),
        "tool-call-parser": _unless(engine.tool_call_parser, ToolCallParser.AUTO, ToolCallParser.NONE),
        "scheduling-policy": "priority",
        "host": "$(POD_IP)",
        "port": SERVER_PORT,
    }
    words = ["serve", _folder(source)]
    for flag, value in flags.items():
        if value is not None:
            words += [f"--{flag}", str(value)]
    if engine.tool_call_parser not in (ToolCallParser.AUTO, ToolCallParser.NONE):
        words.append("--enable-auto-tool-choice")
    words += ["--enable-prompt-tokens-details"]
    words.append("--enable-prefix-caching" if engine.enable_prefix_caching else "--no-enable-prefix-caching")
    if engine.enable_prefix_caching:
        words += [
            "--kv-events-config.enable_kv_cache_events=true",
            "--kv-events-config.publisher=zmq",
            f"--kv-events-config.endpoint={_EVENTS}",
            f"--kv-events-config.replay_endpoint={_EVENTS}-replay",
        ]
    return ["vllm"], [*words, *engine.extra_args]


def front_flags(deployment: LLMDeployment, source: ModelSource) -> dict[str, Any]:
    """Of the front's configuration file."""
    spec, engine = deployment.spec, deployment.spec.engine
    flags = {
        "engine": "vllm",
        "upstream-port": SERVER_PORT,
        "served-name": spec.model.served_name,
        "max-num-seqs": engine.max_num_seqs or MAX_NUM_SEQS,
        "max-num-batched-tokens": engine.max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS,
        "max-num-queued-tokens": engine.max_num_queued_tokens,
        "drain-timeout": format_duration(spec.drain.timeout),
        **source.flags,
    }
    return {flag: value for flag, value in flags.items() if value is not None}


def _front_arguments(deployment: LLMDeployment, source: ModelSource) -> list[str]:
    """Of the front's container."""
    arguments = ["front", "--config", f"{names.ENGINE_CONFIG_FOLDER}/{names.ENGINE_CONFIG_KEY}", *source.arguments]
    arguments += ["--host", "$(POD_IP)", "--port", str(names.ENGINE_PORT)]
    if deployment.spec.engine.enable_prefix_caching:
        arguments += ["--events", _EVENTS, "--replay", f"{_EVENTS}-replay"]
    return arguments


def _unless(value: str, *defaults: str) -> str | None:
    return None if value in defaults else str(value)


def _folder(source: ModelSource) -> str:
    """Of the model, as the pod sees it."""
    return source.flags.get("model") or source.arguments[source.arguments.index("--model") + 1]
