"""Answers of chats, text completions and embeddings → Ollama's, whole and as lines of JSON. Pure.

Times are measured here, in nanoseconds: `prompt_eval_duration` lasts to the first token. The first token's time is not
known of a whole answer, where the prompt is reckoned as one more token.
"""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from fairlead_common.openai.translate.chat_answers import (
    DONE,
    UNREADABLE,
    ChatCall,
    ChatChoice,
    ChatUsage,
    Function,
    completion,
    is_error,
    payloads,
)
from fairlead_common.openai.translate.decoding import decoded
from fairlead_common.openai.translate.ollama import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaRequest,
    chat_fields,
    generate_fields,
    without_tag,
)
from fairlead_common.openai.truncation import ALL_THAT_FIT
from fairlead_common.openai.unknown_fields import UnknownFields

CHAT_PATH = "/api/chat"
GENERATE_PATH = "/api/generate"
EMBED_PATH = "/api/embed"
OLDER_EMBED_PATH = "/api/embeddings"
NDJSON = "application/x-ndjson"
"""Content type of lines of JSON."""
_LOADING_PATH = "/tokenize"
"""What a request without a prompt asks: nothing is generated, and a model that sleeps is woken."""
_NONE = msgspec.Raw(b"null")
_IMAGE_PLACE = re.compile(r"(messages\[\d+\])\.content\[(\d+)\](?:\.image_url)?")
_NAMES = {
    "response_format.json_schema.schema": "format",
    "max_tokens": "num_predict",
    "repetition_penalty": "repeat_penalty",
    "response_format": "format",
    "reasoning_effort": "think",
}
"""Fields of a chat → their names at Ollama."""
_FIELD = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in _NAMES))


class OllamaError(msgspec.Struct, frozen=True):
    """The body of every refusal in Ollama's shape."""

    error: str


class OllamaDialect:
    """Refusals in Ollama's shape: all that is answered on its paths that are not served, as `/api/pull`."""

    stream_type = NDJSON

    def request(self, body: bytes, unknown: UnknownFields) -> tuple[str, bytes]:
        """For paths that are not served."""
        return "", body

    def answer(self, status: int, body: bytes, request_id: str) -> tuple[int, bytes]:
        """Status and body of a refusal."""
        return status, msgspec.json.encode(OllamaError(_problem(status, body)))

    def events(self, data: bytes) -> bytes:
        """Lines of a stream, for whole events of a chat or completion."""
        return data


class OllamaTranslation(OllamaDialect, ABC):
    """A request that is served."""

    @abstractmethod
    def request(self, body: bytes, unknown: UnknownFields) -> tuple[str, bytes]:
        """Path and body in the OpenAI form. Raises PromptError and OverBudget."""

    def answer(self, status: int, body: bytes, request_id: str) -> tuple[int, bytes]:
        if status >= 400:
            return super().answer(status, body, request_id)
        try:
            return status, msgspec.json.encode(self._whole(body))
        except UNREADABLE:
            return 502, msgspec.json.encode(OllamaError("What serves this model does not answer such requests."))

    @abstractmethod
    def _whole(self, body: bytes) -> Mapping[str, Any]:
        """An answer, from one in the OpenAI form. Raises UNREADABLE."""


class _Prompted(OllamaTranslation):
    """A request with a prompt; without one, nothing is computed and the model is loaded."""

    def __init__(self) -> None:
        self._model = ""
        self._loaded = ""
        """What an empty request does: `load` or `unload`; empty = it has a prompt."""
        self._began = time.perf_counter_ns()

    def _loads(self, request: OllamaRequest) -> tuple[str, bytes]:
        """What to send for an empty request."""
        self._loaded = "unload" if request.unloads else "load"
        model = {} if request.model is None else {"model": without_tag(request.model)}
        return _LOADING_PATH, msgspec.json.encode(model | {"prompt": ""})


def _problem(status: int, body: bytes) -> str:
    """The problem, with places in Ollama's request."""
    try:
        told = msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE:
        told = {}
    error = told.get("error", told)
    message = error.get("message") if isinstance(error, dict) else error
    if not isinstance(message, str):
        return f"What serves this model answered with HTTP {status}."
    message = _IMAGE_PLACE.sub(lambda found: f"{found[1]}.images[{int(found[2]) - 1}]", message)
    return _FIELD.sub(lambda found: _NAMES[found[0]], message)


class _Generation(_Prompted):
    """An answer that is generated."""

    def __init__(self) -> None:
        super().__init__()
        self._first_token: int | None = None
        """When it came; None = not yet, or unknown."""
        self._usage = ChatUsage()
        self._finish_reason: str | None = None
        self._call: ChatCall | None = None
        """The call that has begun, whose arguments grow."""
        self._has_failed = False

    def events(self, data: bytes) -> bytes:
        return b"".join(
            msgspec.json.encode(line) + b"\n" for payload in payloads(data) for line in self._lines(payload)
        )

    def _whole(self, body: bytes) -> Mapping[str, Any]:
        if self._loaded:
            return self._said("") | {"done": True, "done_reason": self._loaded}
        answer = completion.decode(body)
        choice = answer.choices[0] if answer.choices else ChatChoice()
        self._model, self._usage = answer.model or self._model, answer.usage or self._usage
        self._finish_reason, said = choice.finish_reason, choice.message
        calls = [call for each in said.tool_calls or () if (call := _call(each)) is not None]
        return self._said(said.content or choice.text, said.thought, calls) | _logprobs(choice) | self._ending()

    def _lines(self, payload: bytes) -> Iterator[Mapping[str, Any]]:
        if self._has_failed:
            return  # nothing comes behind an error, be it another server's end
        if is_error(payload):
            self._has_failed = True
            yield {"error": _problem(500, payload)}
            return
        if payload == DONE:
            yield from self._ended_call()
            yield self._said("") | self._ending()
            return
        try:
            chunk = completion.decode(payload)
        except UNREADABLE:
            return  # a comment of some server
        self._model, self._usage = chunk.model or self._model, chunk.usage or self._usage
        for choice in chunk.choices[:1]:
            yield from self._more(choice)

    def _more(self, choice: ChatChoice) -> Iterator[Mapping[str, Any]]:
        said, logprobs = choice.delta, _logprobs(choice)
        self._finish_reason = choice.finish_reason or self._finish_reason
        text = said.content or choice.text
        if self._first_token is None and (text or said.thought or said.tool_calls):
            self._first_token = time.perf_counter_ns()
        if text or said.thought or logprobs:
            yield self._said(text, said.thought) | logprobs | {"done": False}
        for call in said.tool_calls or ():
            if self._call is None or call.index != self._call.index:
                yield from self._ended_call()
                self._call = call
                continue
            begun = self._call.function
            arguments = (begun.arguments or "") + (call.function.arguments or "")
            self._call = msgspec.structs.replace(self._call, function=Function(begun.name, arguments))

    def _ended_call(self) -> Iterator[Mapping[str, Any]]:
        call, self._call = self._call, None
        if call is not None and (told := _call(call)) is not None:
            yield self._said("", calls=[told]) | {"done": False}

    def _said(self, text: str, thought: str = "", calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """A line with what is said, or a whole answer."""
        return {"model": self._model, "created_at": timestamp(time.time())} | self._parts(text, thought, calls or [])

    @abstractmethod
    def _parts(self, text: str, thought: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        """Fields of what is said."""

    def _ending(self) -> dict[str, Any]:
        total, num_tokens = time.perf_counter_ns() - self._began, self._usage.completion_tokens or 0
        of_prompt = total // (num_tokens + 1) if self._first_token is None else self._first_token - self._began
        return {
            "done": True,
            "done_reason": "length" if self._finish_reason == "length" else "stop",
            "total_duration": total,
            "load_duration": 0,
            "prompt_eval_count": self._usage.prompt_tokens,
            "prompt_eval_duration": of_prompt,
            "eval_count": num_tokens,
            "eval_duration": total - of_prompt,
        }


class OllamaChat(_Generation):
    """A request to `/api/chat` as a chat."""

    def request(self, body: bytes, unknown: UnknownFields) -> tuple[str, bytes]:
        request = decoded(body, OllamaChatRequest, unknown)
        self._model = request.model or ""
        if not request.messages:
            return self._loads(request)
        return "/v1/chat/completions", msgspec.json.encode(chat_fields(request))

    def _parts(self, text: str, thought: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        message |= {"thinking": thought} if thought else {}
        return {"message": message | ({"tool_calls": calls} if calls else {})}


class OllamaGenerate(_Generation):
    """A request to `/api/generate` as a chat, or with `raw` as a text completion."""

    def request(self, body: bytes, unknown: UnknownFields) -> tuple[str, bytes]:
        request = decoded(body, OllamaGenerateRequest, unknown)
        self._model = request.model or ""
        if not (request.prompt or request.images):
            return self._loads(request)
        path = "/v1/completions" if request.raw else "/v1/chat/completions"
        return path, msgspec.json.encode(generate_fields(request))

    def _parts(self, text: str, thought: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        return {"response": text} | ({"thinking": thought} if thought else {})


def _call(call: ChatCall) -> dict[str, Any] | None:
    """None = cut before the arguments were complete."""
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except UNREADABLE:
        return None
    function = {"index": call.index, "name": call.function.name or "", "arguments": arguments}
    return {"id": call.id or "", "function": function}


def _logprobs(choice: ChatChoice) -> dict[str, Any]:
    """OpenAI's, which are Ollama's too."""
    content = _NONE if choice.logprobs is None else choice.logprobs.content
    return {} if bytes(content) in (b"null", b"[]") else {"logprobs": content}


def timestamp(seconds: float) -> str:
    """A time since 1970, as Ollama writes times."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


# -- Embeddings --------------------------------------------------------------------------------------------------------


class _Vector(msgspec.Struct, frozen=True):
    embedding: msgspec.Raw
    index: int = 0


class _Vectors(msgspec.Struct, frozen=True):
    data: list[_Vector]
    model: str = ""
    usage: ChatUsage = ChatUsage()


_vectors: msgspec.json.Decoder[_Vectors] = msgspec.json.Decoder(_Vectors)


class OllamaEmbed(_Prompted):
    """A request to `/api/embed` as one to `/v1/embeddings`."""

    def request(self, body: bytes, unknown: UnknownFields) -> tuple[str, bytes]:
        request = decoded(body, OllamaEmbedRequest, unknown)
        cut = {} if request.truncate is False else {"truncate_prompt_tokens": ALL_THAT_FIT, "truncation_side": "right"}
        return self._embedded(request, request.input, dimensions=request.dimensions, **cut)

    def _embedded(self, request: OllamaRequest, texts: str | list[str] | None, **more: Any) -> tuple[str, bytes]:
        self._model = request.model or ""
        if not texts:
            return self._loads(request)
        given = {"model": without_tag(request.model), **more}
        fields = {name: value for name, value in given.items() if value is not None}
        return "/v1/embeddings", msgspec.json.encode(fields | {"input": texts})

    def _whole(self, body: bytes) -> Mapping[str, Any]:
        found = _vectors.decode(body) if not self._loaded else _Vectors([])
        vectors = [each.embedding for each in sorted(found.data, key=lambda each: each.index)]
        return {
            "model": found.model or self._model,
            "embeddings": vectors,
            "total_duration": time.perf_counter_ns() - self._began,
            "load_duration": 0,
            "prompt_eval_count": found.usage.prompt_tokens,
        }


class OllamaEmbeddings(OllamaEmbed):
    """A request to `/api/embeddings`, which has one text, as one to `/v1/embeddings`."""

    def request(self, body: bytes, unknown: UnknownFields) -> tuple[str, bytes]:
        request = decoded(body, OllamaEmbeddingsRequest, unknown)
        return self._embedded(request, request.prompt)

    def _whole(self, body: bytes) -> Mapping[str, Any]:
        return {"embedding": next(iter(super()._whole(body)["embeddings"]), [])}
