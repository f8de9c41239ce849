"""The rules for servers that are not ours, for the table of `rules.py`: what each has not, or not so, and what to do
instead."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fairlead.api.schema import Rule

_SAYS_NOTHING: Mapping[str, tuple[object, ...]] = {
    "apiServers": (1,),
    "dtype": ("auto",),
    "toolCallParser": ("auto",),
    "reasoningParser": ("auto", "none"),
}
"""Values of such fields that say what is so anyway, or what each server can."""
_AT_RUN_TIME = "adapters at run time are for the engine that comes with Fairlead"


@dataclass(frozen=True, slots=True)
class _Server:
    type: str
    """As `engine.type` names it."""
    image: str
    """An example."""
    left_out: Mapping[str, str]
    """Fields of `spec.engine` that it has not, and what to do instead."""
    refused: tuple[tuple[str, str, str], ...] = ()
    """Of a field that it has, a value that it has not, and a sentence about it."""


_VLLM = _Server(
    "vLLM",
    "vllm/vllm-openai:v0.22.0",
    {
        "quantization": "vLLM rounds weights in ways of its own: write --quantization into engine.extraArgs",
        "apiServers": "write --api-server-count into engine.extraArgs",
        "speculative": "write --speculative-config into engine.extraArgs",
        "profile": "the front of vLLM learns by itself what its steps cost",
        "maxLoras": _AT_RUN_TIME,
        "maxLoraRank": _AT_RUN_TIME,
        "maxCpuLoras": _AT_RUN_TIME,
        "maxImages": "write --limit-mm-per-prompt into engine.extraArgs",
        "maxImagePixels": "write --mm-processor-kwargs into engine.extraArgs",
        "allowedMediaDomains": "write --allowed-media-domains into engine.extraArgs",
    },
    (
        (
            "toolCallParser",
            "harmony",
            "engine.toolCallParser harmony must be left out with engine.type vLLM, which knows by itself",
        ),
        (
            "reasoningParser",
            "think",
            "engine.reasoningParser think is not vLLM's: write --reasoning-parser and one of its own into "
            "engine.extraArgs",
        ),
        ("kvCache.dtype", "int8", "engine.kvCache.dtype int8 is not vLLM's: use auto or fp8"),
    ),
)
_LLAMA_CPP = _Server(
    "llama.cpp",
    "ghcr.io/ggml-org/llama.cpp:server",
    {
        "quantization": "weights are as the GGUF file has them: name a file with others",
        "dtype": "weights are as the GGUF file has them: name a file with others",
        "apiServers": "its server is one process; write --threads-http into engine.extraArgs",
        "toolCallParser": "llama.cpp knows by the chat template; write --chat-template-file into engine.extraArgs",
        "reasoningParser": "llama.cpp knows by the chat template; write --reasoning-format into engine.extraArgs",
        "speculative": "write flags of llama-server's own into engine.extraArgs",
        "profile": "the front of llama.cpp learns by itself what its steps cost",
        "maxLoras": _AT_RUN_TIME,
        "maxLoraRank": _AT_RUN_TIME,
        "maxCpuLoras": _AT_RUN_TIME,
        "maxImages": "write --mmproj into engine.extraArgs for a model that sees",
        "maxImagePixels": "write --image-max-tokens into engine.extraArgs",
        "allowedMediaDomains": "write --media-path into engine.extraArgs",
    },
    (("kvCache.dtype", "fp8", "engine.kvCache.dtype fp8 is not llama.cpp's: use auto or int8"),),
)
_SGLANG = _Server(
    "SGLang",
    "lmsysorg/sglang:v0.5.23",
    {
        "quantization": "SGLang rounds weights in ways of its own: write --quantization into engine.extraArgs",
        "apiServers": "write --tokenizer-worker-num into engine.extraArgs",
        "kvCache.memory": "write --mem-fraction-static or --max-total-tokens into engine.extraArgs",
        "speculative": "write --speculative-algorithm and its other flags into engine.extraArgs",
        "profile": "the front of SGLang learns by itself what its steps cost",
        "maxLoras": _AT_RUN_TIME,
        "maxLoraRank": _AT_RUN_TIME,
        "maxCpuLoras": _AT_RUN_TIME,
        "maxImages": "write --limit-mm-data-per-request into engine.extraArgs",
        "maxImagePixels": "write --mm-process-config into engine.extraArgs",
        "allowedMediaDomains": "write --allowed-media-domains into engine.extraArgs",
    },
    (
        (
            "reasoningParser",
            "think",
            "engine.reasoningParser think is not SGLang's: write --reasoning-parser and one of its own into "
            "engine.extraArgs",
        ),
        ("kvCache.dtype", "int8", "engine.kvCache.dtype int8 is not SGLang's: use auto or fp8"),
    ),
)
_SERVERS = (_VLLM, _LLAMA_CPP, _SGLANG)


def _is_other(server: _Server, of: str = "self") -> str:
    """CEL: this engine is of another type."""
    return f"(!has({of}.type) || {of}.type != '{server.type}')"


def _is_absent(path: str) -> str:
    """CEL: this field, which may be one of another, is not set."""
    outer, _, _ = path.rpartition(".")
    return (f"!has(self.{outer}) || " if outer else "") + f"!has(self.{path})"


def _left_out(server: _Server, path: str, instead: str) -> Rule:
    """A field that must be left out, or say what is so anyway."""
    allowed = _SAYS_NOTHING.get(path, ())
    others = "".join(f" || self.{path} == {value!r}" for value in allowed)
    return Rule(
        f"{_is_other(server)} || {_is_absent(path)}{others}",
        f"engine.{path} must be left out with engine.type {server.type}: {instead}",
    )


def _refused(server: _Server, path: str, value: str, sentence: str) -> Rule:
    return Rule(
        f"{_is_other(server)} || {_is_absent(path)} || self.{path} != '{value}'",
        sentence,
    )


def _of_an_engine(server: _Server) -> Iterator[Rule]:
    yield Rule(
        f"{_is_other(server)} || has(self.image)",
        f"engine.image must be set with engine.type {server.type}, such as {server.image}: which version runs is yours "
        "to say",
    )
    for field, instead in server.left_out.items():
        yield _left_out(server, field, instead)
    for path, value, sentence in server.refused:
        yield _refused(server, path, value, sentence)


def _of_a_spec(server: _Server) -> Iterator[Rule]:
    other = f"!has(self.engine) || {_is_other(server, 'self.engine')}"
    yield Rule(
        f"{other} || !has(self.adapters) || size(self.adapters) == 0",
        f"adapters must be left out with engine.type {server.type}: they are loaded at run time, by the engine that "
        "comes with Fairlead",
    )
    yield Rule(
        f"{other} || !self.model.source.startsWith('demo://')",
        f"model.source demo:// is not for engine.type {server.type}: that model comes with the engine of Fairlead",
    )


ENGINE = (
    *(rule for server in _SERVERS for rule in _of_an_engine(server)),
    Rule(
        f"{_is_other(_SGLANG)} || (has(self.maxNumBatchedTokens) ? self.maxNumBatchedTokens : 8192) % "
        "(has(self.kvCache) && has(self.kvCache.blockSize) ? self.kvCache.blockSize : 16) == 0",
        "engine.maxNumBatchedTokens (8192) must be a multiple of engine.kvCache.blockSize (16) with engine.type "
        "SGLang, which computes prompts by whole blocks",
    ),
)
"""On `spec.engine`."""
SPEC = (
    *(rule for server in _SERVERS for rule in _of_a_spec(server)),
    Rule(
        f"!has(self.engine) || {_is_other(_LLAMA_CPP, 'self.engine')} || "
        "!self.model.source.matches('^(pvc|file)://') || self.model.source.endsWith('.gguf')",
        "model.source must name a .gguf file with engine.type llama.cpp, such as pvc://CLAIM/FOLDER/model.gguf, or be "
        "downloaded",
    ),
)
"""On `spec`."""
