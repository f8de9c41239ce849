"""Foreign servers in an engine's pod, by `engine.type`, each behind a front that makes an engine of it
(`fairlead-engine front`): their containers' arguments. The rest of the pod is as for our engine (`engine.py`)."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.api import names
from fairlead.api.llmdeployment import (
    EngineSpec,
    EngineType,
    KvCacheDtype,
    LLMDeployment,
    ReasoningParser,
    ToolCallParser,
)
from fairlead.api.quantities import format_duration
from fairlead.manifests.common import as_sidecar
from fairlead.manifests.source import MODEL_VOLUME, ModelSource
from fairlead.operator_settings import OperatorSettings

SERVER_PORT = 8001
"""Of the server; the front has the engine's port, and a NetworkPolicy opens no other."""
_OF_THE_POD = ("POD_IP", "POD_NAME")
"""Variables that the arguments use."""
FRONT_REQUESTS = {"cpu": "100m", "memory": "256Mi"}
"""Of the front; a thousand streams take a CPU, if available."""
EVENTS = "ipc://@fairlead-kv-$(POD_NAME)"
"""Endpoint of servers' KV events: a name, not a port, within the pod's own network."""

OF_PYTHON: Mapping[str, str] = {"HOME": "/tmp", "USER": "engine", "HF_HUB_OFFLINE": "1"}
"""Environment of Python servers, because the system does not know their user and their model is a folder."""


@dataclass(frozen=True, slots=True)
class ForeignServer:
    """A kind of server, for the pods of an LLMDeployment."""

    kind: str
    """As `fairlead-engine front --engine` calls it."""
    command: tuple[str, ...]
    """Of its container; empty = the image's own."""
    arguments: Callable[[LLMDeployment, str], list[str]]
    """The server's arguments for a model at this path, with its address; `extraArgs` follow."""
    max_num_seqs: int
    max_num_batched_tokens: int
    """Told to both where the spec leaves it open: the front tells gateways, and must not be mistaken."""
    tells_blocks: bool
    """Whether it publishes KV events, at `EVENTS`."""
    front_flags: Callable[[LLMDeployment], Mapping[str, Any]] = lambda deployment: {}
    """What else the front is told."""
    file_of_a_download: str | None = None
    """File of a downloaded folder to serve; None = the folder."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The container's environment, unless the spec says otherwise."""

    def num_seqs(self, deployment: LLMDeployment) -> int:
        """Most sequences of one step."""
        return deployment.spec.engine.max_num_seqs or self.max_num_seqs

    def num_batched_tokens(self, deployment: LLMDeployment) -> int:
        """Most tokens of one step."""
        return deployment.spec.engine.max_num_batched_tokens or self.max_num_batched_tokens


def words(flags: Mapping[str, object]) -> list[str]:
    """Arguments of these flags and values; without those that have none."""
    return [word for flag, value in flags.items() if value is not None for word in (f"--{flag}", str(value))]


def _template(engine: EngineSpec) -> str | None:
    """The chat template as an argument, in which kubelets replace `$(NAME)`; None = the model's own."""
    return None if engine.chat_template is None else engine.chat_template.replace("$", "$$")


def unless(value: str, *defaults: str) -> str | None:
    """A setting's value; None = one of the defaults."""
    return None if value in defaults else str(value)


def with_front(
    pod: Mapping[str, Any],
    deployment: LLMDeployment,
    settings: OperatorSettings,
    source: ModelSource,
    kind: ForeignServer,
) -> dict[str, Any]:
    """Makes of a pod of our engine a pod of that server behind a front. The front answers for readiness at the engine's
    port; the kubelet asks the server itself for start and liveness.

    The server is a sidecar: it starts first, and gets SIGTERM, which cuts requests, after the front has drained and
    ended.
    """
    (engine,) = (each for each in pod["containers"] if each["name"] == names.ENGINE_CONTAINER)
    front = {
        **engine,
        "name": names.FRONT_CONTAINER,
        "image": settings.engine_image,
        "args": _front_arguments(deployment, source, kind),
        "env": [each for each in engine["env"] if each["name"] in _OF_THE_POD],
        "resources": {"requests": dict(FRONT_REQUESTS)},
    }
    given = {each["name"] for each in engine["env"]}
    health = {"path": "/health", "port": SERVER_PORT, "scheme": "HTTP"}
    server = {
        **engine,
        **({"command": list(kind.command)} if kind.command else {}),
        "args": [*kind.arguments(deployment, _model_path(source, kind)), *deployment.spec.engine.extra_args],
        "env": [
            *engine["env"],
            *({"name": name, "value": value} for name, value in kind.environment.items() if name not in given),
        ],
        "startupProbe": engine["startupProbe"] | {"httpGet": health},
        "livenessProbe": engine["livenessProbe"] | {"httpGet": health, "failureThreshold": 6},
    }
    del server["readinessProbe"], server["ports"]
    # The image of the user's is the server's; what downloads is ours.
    init = [each | {"image": settings.engine_image} for each in pod.get("initContainers") or ()]
    volumes = list(pod["volumes"])
    if folder := source.flags.get("model"):  # of the machine, whose /tmp is not the pod's
        volumes.append({"name": MODEL_VOLUME, "hostPath": {"path": folder}})
        mount = {"name": MODEL_VOLUME, "mountPath": folder, "readOnly": True}
        server["volumeMounts"] = [*server["volumeMounts"], mount]
    return {**pod, "initContainers": [*init, as_sidecar(server)], "containers": [front], "volumes": volumes}


def front_flags(deployment: LLMDeployment, source: ModelSource, kind: ForeignServer) -> dict[str, Any]:
    """Of the front's configuration file."""
    spec, engine = deployment.spec, deployment.spec.engine
    flags = {
        "engine": kind.kind,
        "upstream-port": SERVER_PORT,
        "served-name": spec.model.served_name,
        "max-num-seqs": kind.num_seqs(deployment),
        "max-num-batched-tokens": kind.num_batched_tokens(deployment),
        "max-num-queued-tokens": engine.max_num_queued_tokens,
        "chat-template": engine.chat_template,
        "enable-prefix-caching": None if engine.enable_prefix_caching else False,
        "drain-timeout": format_duration(spec.drain.timeout),
        **kind.front_flags(deployment),
        **source.flags,
    }
    return {flag: value for flag, value in flags.items() if value is not None}


def _front_arguments(deployment: LLMDeployment, source: ModelSource, kind: ForeignServer) -> list[str]:
    """Of the front's container."""
    arguments = ["front", "--config", f"{names.ENGINE_CONFIG_FOLDER}/{names.ENGINE_CONFIG_KEY}"]
    path = _model_path(source, kind)
    arguments += [path if path.startswith(f"{each}/") else each for each in source.arguments]
    arguments += ["--host", "$(POD_IP)", "--port", str(names.ENGINE_PORT)]
    if kind.tells_blocks and deployment.spec.engine.enable_prefix_caching:
        arguments += ["--events", EVENTS, "--replay", f"{EVENTS}-replay"]
    return arguments


def _model_path(source: ModelSource, kind: ForeignServer) -> str:
    """Of the model, as the pod sees it."""
    path = source.flags.get("model") or source.arguments[source.arguments.index("--model") + 1]
    return f"{path}/{kind.file_of_a_download}" if kind.file_of_a_download and source.downloads else path


_MIB = 2**20
_LLAMA_CPP_KV_TYPES: Mapping[str, str | None] = {"auto": None, "int8": "q8_0"}
_SGLANG_BLOCK_SIZE = 16
"""SGLang's own default of 1 would make every token a block."""
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
    ToolCallParser.KIMI_K2: "kimi_k2",
    ToolCallParser.DEEPSEEK_V32: "deepseekv32",
    ToolCallParser.LFM2: "lfm2",
    ToolCallParser.GEMMA4: "gemma4",
    ToolCallParser.GIGACHAT3: "gigachat3",
    ToolCallParser.PYTHONIC: "pythonic",
}
_SGLANG_REASONING_PARSERS: Mapping[str, str] = {
    ReasoningParser.MISTRAL: "mistral",
    ReasoningParser.GEMMA4: "gemma4",
    ReasoningParser.MINIMAX_M3: "minimax-m3",
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
        "chat-template": _template(engine),
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
        "chat-template": _template(engine),
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


LLAMA_CPP = ForeignServer(
    kind="llama-cpp",
    command=(),
    arguments=_llama_cpp_arguments,
    max_num_seqs=4,
    max_num_batched_tokens=2048,
    tells_blocks=False,
    front_flags=lambda deployment: {"block-size": deployment.spec.engine.kv_cache.block_size},
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
        "reasoning-parser": _SGLANG_REASONING_PARSERS.get(engine.reasoning_parser),
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
