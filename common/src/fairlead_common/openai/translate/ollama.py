"""Requests of Ollama's `/api/chat`, `/api/generate`, `/api/embed` and `/api/embeddings` → chats, text completions and
embeddings. Pure.

Options about how Ollama loads a model have no effect, since its LLMDeployment decides; options of sampling without an
equal are refused unless they are off.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from fairlead_common.openai.budget import MAX_MESSAGES, MAX_TOOLS, ModelName
from fairlead_common.openai.prompts import PromptError

_OFF = {"typical_p": 1}
"""Options of sampling that are not here → the value without effect."""
_ROLES = ("system", "developer", "user", "assistant", "tool")
_BASE64_BEGINNINGS = {"/9j/": "jpeg", "iVBORw0KGgo": "png", "R0lGOD": "gif", "UklGR": "webp"}
"""How images begin, in base64 → their type."""
_NO_TEMPLATES = "prompts are made by the model's own chat template; leave it out, or send the whole prompt with raw"


class OllamaOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How an answer is written. Whole numbers may come as `128.0`."""

    num_predict: float | None = None
    """Most tokens of the answer; 0 or less = as many as the context has."""
    temperature: float | None = None
    top_k: float | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: float | None = None
    """Negative = another each time."""
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    typical_p: float | None = None
    mirostat: Any = None
    """No effect, as all that follows: Ollama has given it up."""
    tfs_z: Any = None
    mirostat_tau: Any = None
    mirostat_eta: Any = None
    repeat_last_n: Any = None
    penalize_newline: Any = None
    num_ctx: Any = None
    num_keep: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    main_gpu: Any = None
    num_thread: Any = None
    numa: Any = None
    low_vram: Any = None
    f16_kv: Any = None
    use_mmap: Any = None
    use_mlock: Any = None
    vocab_only: Any = None
    logits_all: Any = None
    embedding_only: Any = None


class OllamaFunction(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What a call called."""

    name: str
    arguments: dict[str, Any] | str | None = None
    index: int | None = None
    description: str | None = None


class OllamaCall(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A tool call of the model."""

    function: OllamaFunction
    id: str | None = None
    type: str | None = None


class OllamaMessage(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A message of a chat; as the last one of the assistant, the beginning of its answer."""

    role: str
    """system, developer, user, assistant or tool, in any case."""
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    """Each in base64."""
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    """Whose result it is."""
    tool_call_id: str | None = None
    name: str | None = None
    """Another name of `tool_name`."""


class OllamaRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What requests with prompts share."""

    model: ModelName | None = None
    options: OllamaOptions | None = None
    keep_alive: float | str | None = None
    """No effect but on what an empty request is answered."""
    truncate: bool | None = None
    """Of texts for vectors: whether the end of too long a text is left out, or the text refused; None = true. No
    effect on others, which are refused."""

    @property
    def unloads(self) -> bool:
        """Whether the model is to be let go after the answer."""
        return self.keep_alive in (0, "0", "0s", "0m", "0h")


class _GenerationRequest(OllamaRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    stream: bool | None = None
    """None = true."""
    format: str | dict[str, Any] | None = None
    """`json`, or a schema."""
    think: bool | str | None = None
    """Whether to reason, or how much."""
    logprobs: bool | None = None
    top_logprobs: int | None = None
    shift: bool | None = None
    """No effect: an answer ends where the context ends."""

    @property
    def is_streamed(self) -> bool:
        return self.stream is not False


class OllamaChatRequest(_GenerationRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`POST /api/chat`. Without messages, nothing is generated and the model is loaded."""

    messages: Annotated[list[OllamaMessage], msgspec.Meta(max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=MAX_TOOLS)] | None = None


class OllamaGenerateRequest(_GenerationRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`POST /api/generate`. Without a prompt, nothing is generated and the model is loaded."""

    prompt: str | None = None
    system: str | None = None
    images: list[str] | None = None
    raw: bool | None = None
    """Whether the prompt is all there is, and no chat."""
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None


class OllamaEmbedRequest(OllamaRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`POST /api/embed`."""

    input: str | list[str] | None = None
    dimensions: int | None = None


class OllamaEmbeddingsRequest(OllamaRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`POST /api/embeddings`, the older form."""

    prompt: str | None = None


class OllamaShowRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`POST /api/show`."""

    model: ModelName | None = None
    name: ModelName | None = None
    """The older name of `model`."""
    verbose: bool | None = None
    """No effect, as all that follows."""
    system: Any = None
    template: Any = None
    options: Any = None

    @property
    def wanted(self) -> str | None:
        """The name of the model."""
        return without_tag(self.model or self.name)


def without_tag(name: str | None) -> str | None:
    """The name of a model without the tag `latest`, which Ollama's clients add to names without a tag."""
    return None if name is None else name.removesuffix(":latest")


def chat_fields(request: OllamaChatRequest) -> dict[str, Any]:
    """Fields of the chat, which has a message for each of the request. Raises PromptError."""
    return _chat(request, _messages(request.messages or ()), request.tools)


def generate_fields(request: OllamaGenerateRequest) -> dict[str, Any]:
    """Fields of the chat, or of a text completion where the prompt is raw. Raises PromptError."""
    for name, advice in (
        ("template", _NO_TEMPLATES),
        ("suffix", "is not supported; leave it out"),
        ("context", "is not supported; send the conversation to /api/chat"),
    ):
        if getattr(request, name):
            raise PromptError(name, f"{name}: {advice}")
    if not request.raw:
        system = [{"role": "system", "content": request.system}] if request.system else []
        content = _content(request.prompt, request.images, "images")
        return _chat(request, [*system, {"role": "user", "content": content}])
    for name in ("system", "images", "think", "logprobs"):
        if getattr(request, name):
            raise PromptError(
                name, f"{name}: is not supported with raw, where the prompt is all there is; leave it out"
            )
    return {"prompt": request.prompt} | _common(request)


def _chat(
    request: _GenerationRequest, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    fields: dict[str, Any] = {"messages": messages, "best_effort": True} | _common(request) | _thinking(request.think)
    if tools:
        # Ollama reads no type of a tool, and clients write it as they like: ollama-rs as "Function".
        fields["tools"] = [{**tool, "type": "function"} for tool in tools]
    last = messages[-1]
    if last["role"] == "assistant" and last["content"] and "tool_calls" not in last:
        fields |= {"add_generation_prompt": False, "continue_final_message": True}
    if request.logprobs or request.top_logprobs:
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    return fields


def _messages(messages: Sequence[OllamaMessage]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    open_calls: list[tuple[str, str]] = []
    """Name and id of each call without a result: results may tell neither, and are in the calls' order."""
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        content = _content(message.content, message.images, f"{place}.images")
        role = message.role.lower()
        if role not in _ROLES:
            problem = f"must be {', '.join(_ROLES[:-1])} or {_ROLES[-1]}, not {message.role!r}"
            raise PromptError(f"{place}.role", f"{place}.role: {problem}")
        chat: dict[str, Any] = {"role": role, "content": content}
        if role == "assistant" and message.thinking:
            chat["reasoning_content"] = message.thinking
        if message.tool_calls:
            calls = [_call(call, f"call_{index}_{at}") for at, call in enumerate(message.tool_calls)]
            chat |= {"content": content or None, "tool_calls": calls}
            open_calls = [(call["function"]["name"], call["id"]) for call in calls]
        if role == "tool":
            name = message.tool_name or message.name
            chat["tool_call_id"] = message.tool_call_id or _answered(open_calls, name)
            if name:
                chat["name"] = name
        told.append(chat)
    return told


def _call(call: OllamaCall, call_id: str) -> dict[str, Any]:
    arguments = call.function.arguments
    if not isinstance(arguments, str):
        arguments = msgspec.json.encode(arguments or {}).decode()
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id or call_id, "type": "function", "function": function}


def _answered(open_calls: list[tuple[str, str]], name: str | None) -> str:
    """Id of the first call of that name, else of the first one; empty = none is open."""
    found = next((each for each in open_calls if each[0] == name), open_calls[0] if open_calls else None)
    if found is None:
        return ""
    open_calls.remove(found)
    return found[1]


def _content(text: str | None, images: Sequence[str] | None, place: str) -> str | list[dict[str, Any]]:
    """The text, and behind it the images."""
    if not images:
        return text or ""
    urls = [_image_url(image, f"{place}[{index}]") for index, image in enumerate(images)]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"type": "text", "text": text or ""}, *parts]


def _image_url(image: str, place: str) -> str:
    kind = next((kind for beginning, kind in _BASE64_BEGINNINGS.items() if image.startswith(beginning)), None)
    if kind is None:
        raise PromptError(place, f"{place}: must be a JPEG, PNG, GIF or WebP image in base64")
    return f"data:image/{kind};base64,{image}"


def _thinking(think: bool | str | None) -> dict[str, Any]:
    if think is None:
        return {}
    is_on = think is not False
    fields: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": is_on, "thinking": is_on}}
    return fields | ({"reasoning_effort": think} if isinstance(think, str) else {})


def _common(request: _GenerationRequest) -> dict[str, Any]:
    """Fields that chats and text completions share."""
    fields = _sampling(request.options or OllamaOptions())
    if request.model is not None:
        fields["model"] = without_tag(request.model)
    if request.is_streamed:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    match request.format:
        case None | "":
            return fields
        case "json":
            return fields | {"response_format": {"type": "json_object"}}
        case str():
            raise PromptError("format", f'format: {request.format!r} is not supported; send "json" or a schema')
        case schema:
            kept_to = {"name": "answer", "schema": schema}  # as Ollama keeps to it: as far as it can
            return fields | {"response_format": {"type": "json_schema", "json_schema": kept_to}}


def _sampling(options: OllamaOptions) -> dict[str, Any]:
    for name, off in _OFF.items():
        if getattr(options, name) not in (None, off):
            raise PromptError(f"options.{name}", f"options.{name}: is not supported; leave it out, or send {off}")
    num_predict, seed, top_k = (
        None if value is None else int(value) for value in (options.num_predict, options.seed, options.top_k)
    )
    given = {
        "max_tokens": num_predict if num_predict is not None and num_predict > 0 else None,
        "seed": seed if seed is not None and seed >= 0 else None,
        "top_k": top_k,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "stop": options.stop or None,
        "repetition_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
    }
    return {name: value for name, value in given.items() if value is not None}
