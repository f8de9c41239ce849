"""The rules that depend on `engine.type`, for the table of `rules.py`: fields missing in a foreign server, with the
alternative; arguments and environment variables reserved for the operator. With an unexpected port, name, key or model
an engine would seem to load for ever, or answer under a wrong name."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.api.cel import matches
from fairlead.api.schema import Rule

_SAYS_NOTHING: Mapping[str, tuple[object, ...]] = {
    "apiServers": (1,),
    "dtype": ("auto",),
    "toolCallParser": ("auto",),
    "reasoningParser": ("auto", "none"),
    "unknownFields": ("ignore",),
}
"""Harmless values of fields to be left out: the default, or a common capability."""
_SHORTEST = 2
"""Letters of an abbreviated flag; parsers take any unambiguous beginning."""
_AT_RUN_TIME = "adapters at run time are for the engine that comes with Fairlead"
_NAMES = "write model.source and model.servedName"
EVERY_ENGINES = ("FAIRLEAD_*", "POD_IP")
"""Environment variables set by the operator for every engine; `*` = anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngineKind:
    """Gaps of a kind of engine, and its arguments reserved for the operator."""

    type: str
    """As `engine.type` names it."""
    image: str = ""
    """An example of what `engine.image` must name; empty = the field may be left out."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Fields of `spec.engine` missing in the server → the alternative."""
    refused: tuple[tuple[str, str, str], ...] = ()
    """(field of the server, refused value, sentence)."""
    flags: tuple[str, ...]
    """That the operator sets."""
    short: tuple[str, ...] = ()
    """The same with one dash."""
    variables: tuple[str, ...] = ()
    """Environment variables with the same effect, or with the effect of closing the engine to the operator."""
    instead: str = _NAMES
    """What to write instead of those flags."""
    abbreviates: bool = False
    """Whether its parser takes the beginning of a flag, and underscores, for the flag."""

    @property
    def pattern(self) -> str:
        """Matches an argument with one of the flags, with or without a value."""
        flags = [_beginnings(each) if self.abbreviates else each for each in self.flags]
        short = f"|-({'|'.join(self.short)})" if self.short else ""
        return f"(?s)^(--({'|'.join(flags)}){short})([.=].*)?$"


def _beginnings(flag: str) -> str:
    """Of a flag and its abbreviations, with dashes or underscores."""
    letters = ["[-_]" if each == "-" else each for each in flag]
    rest = ""
    for letter in reversed(letters[_SHORTEST:]):
        rest = f"({letter}{rest})?"
    return "".join(letters[:_SHORTEST]) + rest


def _own_parser(server: str, field: str, value: str) -> tuple[str, str, str]:
    """A value of a field that a server does not have."""
    flag = re.sub("([A-Z])", r"-\1", field).lower()
    return (
        field,
        value,
        f"engine.{field} {value} is not {server}'s: write --{flag} and one of its own into engine.extraArgs",
    )


def _written(**fields: str) -> dict[str, str]:
    """Fields for flags of the server's own, by the flags."""
    return {name: f"write {flags} into engine.extraArgs" for name, flags in fields.items()}


_NO_LORAS = dict.fromkeys(("maxLoras", "maxLoraRank", "maxLoraExpertRank", "maxCpuLoras"), _AT_RUN_TIME)
_GGUF = "weights are as the GGUF file has them: name a file with others"
_TLS = ("ssl-certfile", "ssl-keyfile")
_FAIRLEAD = _EngineKind(
    type="Fairlead",
    flags=("adapter-folder", "config", "drain-timeout", "host", "model", "port", "served-name"),
    instead=f"{_NAMES}, adapters and drain.timeout",
)
_VLLM = _EngineKind(
    type="vLLM",
    image="vllm/vllm-openai:v0.22.0",
    left_out={
        "quantization": "vLLM rounds weights in ways of its own: write --quantization into engine.extraArgs",
        **_written(apiServers="--api-server-count", speculative="--speculative-config"),
        "profile": "the front of vLLM learns by itself what its steps cost",
        **_NO_LORAS,
        **_written(maxImages="--limit-mm-per-prompt", maxImagePixels="--mm-processor-kwargs"),
        **_written(allowedMediaDomains="--allowed-media-domains"),
        "unknownFields": "vLLM passes over fields that it does not know",
    },
    refused=(
        (
            "toolCallParser",
            "harmony",
            "engine.toolCallParser harmony must be left out with engine.type vLLM, which knows by itself",
        ),
        *(_own_parser("vLLM", "toolCallParser", value) for value in ("nemotron", "solar_open", "functionary")),
        *(_own_parser("vLLM", "reasoningParser", value) for value in ("think", "solar_open")),
        ("kvCache.dtype", "int8", "engine.kvCache.dtype int8 is not vLLM's: use auto or fp8"),
    ),
    flags=(
        "api-key",
        "config",
        "host",
        "kv-events-config",
        "model",
        "port",
        "root-path",
        "served-model-name",
        *_TLS,
        "uds",
    ),
    variables=("VLLM_API_KEY",),
    abbreviates=True,
)
_LLAMA_CPP = _EngineKind(
    type="llama.cpp",
    image="ghcr.io/ggml-org/llama.cpp:server",
    left_out={
        "quantization": _GGUF,
        "dtype": _GGUF,
        "apiServers": "its server is one process; write --threads-http into engine.extraArgs",
        "toolCallParser": "llama.cpp knows by the chat template; write another into engine.chatTemplate",
        "reasoningParser": "llama.cpp knows by the chat template; write --reasoning-format into engine.extraArgs",
        **_written(speculative="flags of llama-server's own"),
        "profile": "the front of llama.cpp learns by itself what its steps cost",
        **_NO_LORAS,
        "maxImages": "write --mmproj into engine.extraArgs for a model that sees",
        **_written(maxImagePixels="--image-max-tokens", allowedMediaDomains="--media-path"),
        "unknownFields": "llama.cpp passes over fields that it does not know",
    },
    refused=(("kvCache.dtype", "fp8", "engine.kvCache.dtype fp8 is not llama.cpp's: use auto or int8"),),
    flags=("alias", "api-key", "api-key-file", "api-prefix", "host", "model", "port", "ssl-cert-file", "ssl-key-file"),
    short=("a", "m"),
    variables=(
        "LLAMA_API_KEY", "LLAMA_ARG_ALIAS", "LLAMA_ARG_API_PREFIX", "LLAMA_ARG_HOST", "LLAMA_ARG_MODEL",
        "LLAMA_ARG_PORT", "LLAMA_ARG_SSL_CERT_FILE", "LLAMA_ARG_SSL_KEY_FILE",
    ),
)  # fmt: skip
_SGLANG = _EngineKind(
    type="SGLang",
    image="lmsysorg/sglang:v0.5.23",
    left_out={
        "quantization": "SGLang rounds weights in ways of its own: write --quantization into engine.extraArgs",
        "apiServers": "write --tokenizer-worker-num into engine.extraArgs",
        "kvCache.memory": "write --mem-fraction-static or --max-total-tokens into engine.extraArgs",
        "speculative": "write --speculative-algorithm and its other flags into engine.extraArgs",
        "chatTemplate": "SGLang reads a file: mount one, and write --chat-template into engine.extraArgs",
        "profile": "the front of SGLang learns by itself what its steps cost",
        **_NO_LORAS,
        **_written(maxImages="--limit-mm-data-per-request", maxImagePixels="--mm-process-config"),
        **_written(allowedMediaDomains="--allowed-media-domains"),
        "unknownFields": "SGLang passes over fields that it does not know",
    },
    refused=(
        _own_parser("SGLang", "reasoningParser", "think"),
        ("kvCache.dtype", "int8", "engine.kvCache.dtype int8 is not SGLang's: use auto or fp8"),
    ),
    flags=("api-key", "config", "host", "kv-events-config", "model", "model-path", "port", "served-model-name", *_TLS),
    abbreviates=True,
)
_FOREIGN = (_VLLM, _LLAMA_CPP, _SGLANG)
_KINDS = (_FAIRLEAD, *_FOREIGN)


def _is_other(kind: _EngineKind, of: str = "self") -> str:
    """CEL: this engine is of another type."""
    if kind is _FAIRLEAD:
        return f"(has({of}.type) && {of}.type != '{kind.type}')"
    return f"!has({of}.type) || {of}.type != '{kind.type}'"


def _is_absent(path: str) -> str:
    """CEL: the field, perhaps of an inner object, is not set."""
    outer, _, _ = path.rpartition(".")
    return (f"!has(self.{outer}) || " if outer else "") + f"!has(self.{path})"


def _of_a_foreign_engine(kind: _EngineKind) -> Iterator[Rule]:
    other = f"({_is_other(kind)})"
    yield Rule(
        f"{other} || has(self.image)",
        f"engine.image must be set with engine.type {kind.type}, such as {kind.image}: which version runs is yours "
        "to say",
    )
    for path, instead in kind.left_out.items():
        allowed = "".join(f" || self.{path} == {value!r}" for value in _SAYS_NOTHING.get(path, ()))
        message = f"engine.{path} must be left out with engine.type {kind.type}: {instead}"
        yield Rule(f"{other} || {_is_absent(path)}{allowed}", message)
    for path, value, sentence in kind.refused:
        yield Rule(f"{other} || {_is_absent(path)} || self.{path} != '{value}'", sentence)


def _of_a_spec(kind: _EngineKind) -> Iterator[Rule]:
    other = f"!has(self.engine) || ({_is_other(kind, 'self.engine')})"
    yield Rule(
        f"{other} || !has(self.adapters) || size(self.adapters) == 0",
        f"adapters must be left out with engine.type {kind.type}: they are loaded at run time, by the engine that "
        "comes with Fairlead",
    )
    yield Rule(
        f"{other} || !self.model.source.startsWith('demo://')",
        f"model.source demo:// is not for engine.type {kind.type}: that model comes with the engine of Fairlead",
    )


def _of_arguments(kind: _EngineKind) -> Rule:
    written = ", ".join((*(f"--{each}" for each in kind.flags), *(f"-{each}" for each in kind.short)))
    return Rule(
        f"{_is_other(kind)} || !has(self.extraArgs) || !self.extraArgs.exists(each, each.matches('{kind.pattern}'))",
        f"engine.extraArgs of type {kind.type} must have none of {written}, which the operator says: {kind.instead}",
    )


def _of_variables(kind: _EngineKind) -> Rule:
    pattern = _any_of(kind.variables)
    return Rule(
        f"{_is_other(kind)} || !has(self.env) || !self.env.exists(each, each.name.matches('{pattern}'))",
        f"engine.env of type {kind.type} must have none of {', '.join(kind.variables)}: gateway and operator would "
        "not reach the engine, or not find the model: leave it out",
    )


def _any_of(variables: tuple[str, ...]) -> str:
    """The pattern of their names."""
    return f"^({'|'.join(each.replace('*', '.*') for each in variables)})$"


OWNED_VARIABLES = (*EVERY_ENGINES, *(each for kind in _KINDS for each in kind.variables))
"""Environment variables reserved for the operator with some type of engine; `*` = anything."""


def is_owned(variable: str) -> bool:
    """Whether an environment variable is among them."""
    return matches(_any_of(OWNED_VARIABLES), variable)


def owned_variables(engine_type: str, pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(place, name) of reserved variables in a template of a pod's shape, for which the CRD has no rule."""
    own = next((each.variables for each in _KINDS if each.type == engine_type), ())
    pattern = _any_of(EVERY_ENGINES + own)
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(pod.get(kind) or ()):
            for variable in container.get("env") or ():
                if matches(pattern, variable["name"]):
                    yield f"{kind}[{index}].env", variable["name"]


ENGINE = (
    *(rule for kind in _FOREIGN for rule in _of_a_foreign_engine(kind)),
    Rule(
        f"({_is_other(_SGLANG)}) || (has(self.maxNumBatchedTokens) ? self.maxNumBatchedTokens : 8192) % "
        "(has(self.kvCache) && has(self.kvCache.blockSize) ? self.kvCache.blockSize : 16) == 0",
        "engine.maxNumBatchedTokens (8192) must be a multiple of engine.kvCache.blockSize (16) with engine.type "
        "SGLang, which computes prompts by whole blocks",
    ),
    *map(_of_arguments, _KINDS),
    *(_of_variables(each) for each in _KINDS if each.variables),
)
"""On `spec.engine`."""
SPEC = (
    *(rule for kind in _FOREIGN for rule in _of_a_spec(kind)),
    Rule(
        f"!has(self.engine) || ({_is_other(_LLAMA_CPP, 'self.engine')}) || "
        "!self.model.source.matches('^(pvc|file)://') || self.model.source.endsWith('.gguf')",
        "model.source must name a .gguf file with engine.type llama.cpp, such as pvc://CLAIM/FOLDER/model.gguf, or be "
        "downloaded",
    ),
)
"""On `spec`."""
ENVIRONMENT_VARIABLE = (
    Rule(
        f"!self.name.matches('{_any_of(EVERY_ENGINES)}')",
        f"engine.env must have none of {', '.join(EVERY_ENGINES)}, which the operator says: leave it out",
    ),
)
"""On each item of `spec.engine.env`."""
