"""OpenAI's Responses API → chats. Pure.

Where nothing is stored, each request brings its whole history (`input`), and what refers to an earlier response is
refused by name. A custom tool becomes a function with one text, `input`; a tool of a namespace a function with the
names of both, joined by `__`. Tools and choices in the form of a chat, which some clients send, are taken as well.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from fairlead_common.openai.budget import MAX_MESSAGES, MAX_TOOLS, Metadata, ModelName
from fairlead_common.openai.prompts import PromptError
from fairlead_common.openai.tool_forms import INPUT_OF_CUSTOM, function_of
from fairlead_common.openai.translate.decoding import decoded, tag_of
from fairlead_common.openai.unknown_fields import UnknownFields

RESPONSES_PATH = "/v1/responses"
INPUT_TOKENS_PATH = "/v1/responses/input_tokens"
_NOT_KEPT = "responses are not kept here; send the whole conversation as input"
_PASSED_OVER = ("web_search", "web_search_preview", "web_search_2025_08_26", "image_generation", "tool_search")
"""Types of tools without effect: nobody searches or draws here, and models see all tools at once."""
_OF_A_CHAT = (
    "frequency_penalty", "presence_penalty", "repetition_penalty", "top_k", "min_p", "seed", "stop", "logit_bias",
    "ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "structured_outputs", "chat_template_kwargs",
    "cache_salt", "priority",
)  # fmt: skip
"""Fields that a chat has by the same names."""
_JOIN = "__"
"""Between the names of a namespace and of its tool."""
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_CHAT_PLACE = re.compile(r"messages\[(\d+)\](?:\.\w+|\[\d+\])*")


class ResponsesRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`POST /v1/responses`, as OpenAI's clients send it."""

    input: str | Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: ModelName | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    stream: bool | None = None
    tools: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    """Its `format` is kept to; `verbosity` has no effect."""
    reasoning: dict[str, Any] | None = None
    """Its `effort` reaches chat templates that know of one; the rest has no effect."""
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    """`message.output_text.logprobs`; others have no effect."""
    background: bool | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    """No effect where responses are not stored."""
    frequency_penalty: Any = None
    presence_penalty: Any = None
    repetition_penalty: Any = None
    top_k: Any = None
    min_p: Any = None
    seed: Any = None
    stop: Any = None
    logit_bias: Any = None
    ignore_eos: Any = None
    skip_special_tokens: Any = None
    include_stop_str_in_output: Any = None
    structured_outputs: Any = None
    chat_template_kwargs: Any = None
    cache_salt: Any = None
    priority: Any = None
    """A chat's, as vLLM takes them here."""
    context_management: Any = None
    """No effect."""
    conversation: Any = None
    prompt: Any = None
    """Both are refused; what follows has no effect."""
    stream_options: Any = None
    truncation: str | None = None
    max_tool_calls: int | None = None
    metadata: Metadata | None = None
    client_metadata: Any = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    moderation: Any = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None

    def tool(self, name: str | None) -> tuple[dict[str, str], bool]:
        """For a tool's name in the chat: `name` and perhaps `namespace` of the tool, and whether the tool is custom."""
        for _, namespace, tool in _tools(self.tools or ()):
            if _chat_name(tool.get("name"), namespace) == name:
                names = {"name": str(tool["name"])} | ({} if namespace is None else {"namespace": namespace})
                return names, tool.get("type") == "custom"
        return {"name": name or ""}, False


class Kept(msgspec.Struct):
    """What a store knows of a new response."""

    id: str
    before: Sequence[Mapping[str, Any]] = ()
    """Items of the conversation before `input`."""
    is_stored: bool = True


def decoded_response(body: bytes, unknown: UnknownFields, kept: Kept | None = None) -> ResponsesRequest:
    """`kept`: None = responses are not stored. Raises PromptError and OverBudget."""
    request = decoded(body, ResponsesRequest, unknown)
    for field in ("conversation", "prompt", *(() if kept else ("background", "previous_response_id"))):
        if getattr(request, field):
            raise PromptError(field, f"{field}: {_NOT_KEPT}")
    return request


def chat_fields_of(request: ResponsesRequest, kept: Kept | None = None) -> tuple[dict[str, Any], list[str]]:
    """Fields of the chat, and the place in the request of each of its messages. Raises PromptError."""
    history = _History()
    if request.instructions:
        history.add("instructions", {"role": "system", "content": request.instructions})
    for item in kept.before if kept else ():
        history.read("previous_response_id", item)
    if isinstance(request.input, str):
        history.add("input", {"role": "user", "content": request.input})
    else:
        for index, item in enumerate(request.input):
            history.read(f"input[{index}]", item)
    given = {
        "model": request.model,
        "max_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "parallel_tool_calls": request.parallel_tool_calls if request.tools else None,
        "response_format": _format(request.text or {}),
        "tools": list(_functions(request.tools or ())) or None,
        "tool_choice": _choice(request) if request.tools else None,
        "prompt_cache_key": tag_of(request.prompt_cache_key),
        "user": tag_of(request.user),
        **{name: getattr(request, name) for name in _OF_A_CHAT},
        **_reasoning(request.reasoning or {}),
        **_logprobs(request),
    }
    fields = {name: value for name, value in given.items() if value is not None}
    if "tools" not in fields:
        if fields.get("tool_choice") == "required":
            problem = "nothing runs the tools that were sent; send functions or custom tools, or auto"
            raise PromptError("tool_choice", f"tool_choice: {problem}")
        fields.pop("tool_choice", None)
        fields.pop("parallel_tool_calls", None)
    return fields | {"messages": history.messages, "best_effort": True}, history.places


def place_in_request(text: str, places: Sequence[str]) -> str:
    """An error's text with places of the chat replaced by those in the request."""

    def replaced(found: re.Match[str]) -> str:
        index = int(found[1])
        return places[index] if index < len(places) else found[0]

    return _CHAT_PLACE.sub(replaced, text)


class _History:
    """Items → messages: reasoning and calls that follow one another are one message of the assistant, and instructions
    at the beginning are one of the system, since templates know one."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: list[str] = []
        self._thought = ""
        """Reasoning before the next message or call of the assistant."""

    def read(self, place: str, item: Mapping[str, Any]) -> None:
        kind = item.get("type", "message" if "role" in item else None)
        match kind:
            case "message":
                self._message(place, item)
            case "reasoning":
                parts = item.get("content") or item.get("summary") or ()
                self._thought += "".join(_texts(parts, f"{place}.content"))
            case "function_call" | "custom_tool_call":
                self._call(place, item, is_custom=kind == "custom_tool_call")
            case "function_call_output" | "custom_tool_call_output":
                output = _content(item.get("output"), f"{place}.output")
                self.add(place, {"role": "tool", "tool_call_id": _text_of(item, "call_id", place), "content": output})
            case "web_search_call":
                pass  # found by another server; the answer that follows says what
            case "item_reference":
                raise PromptError(f"{place}.type", f"{place}.type: {_NOT_KEPT}")
            case _:
                problem = "is not supported; send messages, reasoning, calls of functions or custom tools, and outputs"
                raise PromptError(f"{place}.type", f"{place}.type: {kind!r} {problem}")

    def add(self, place: str, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.places.append(place)

    def _message(self, place: str, item: Mapping[str, Any]) -> None:
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            problem = f"must be user, assistant, system or developer, not {role!r}"
            raise PromptError(f"{place}.role", f"{place}.role {problem}")
        content = _content(item.get("content"), f"{place}.content")
        if role == "assistant":
            self.add(place, {"role": role, "content": content} | self._reasoning())
        elif role == "user":
            self.add(place, {"role": role, "content": content})
        elif self.messages and all(each["role"] == "system" for each in self.messages):
            before = self.messages[-1]
            before["content"] = [*_as_parts(before["content"]), {"type": "text", "text": "\n\n"}, *_as_parts(content)]
        else:
            self.add(place, {"role": "system", "content": content})

    def _call(self, place: str, item: Mapping[str, Any], *, is_custom: bool) -> None:
        arguments = _text_of(item, "input" if is_custom else "arguments", place)
        if is_custom:
            arguments = msgspec.json.encode({INPUT_OF_CUSTOM: arguments}).decode()
        name = _chat_name(_text_of(item, "name", place), item.get("namespace"))
        function = {"name": name, "arguments": arguments}
        call = {"id": _text_of(item, "call_id", place), "type": "function", "function": function}
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or self._thought:
            self.add(place, {"role": "assistant", "content": None} | self._reasoning())
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def _reasoning(self) -> dict[str, Any]:
        thought, self._thought = self._thought, ""
        return {"reasoning_content": thought} if thought else {}


def _text_of(item: Mapping[str, Any], name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise PromptError(f"{place}.{name}", f"{place}.{name} must be a text")
    return value


def _content(content: Any, place: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise PromptError(place, f"{place} must be a text or a list of parts")
    return [_part(part, f"{place}[{index}]") for index, part in enumerate(content)]


def _part(part: Any, place: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXTS:
        return {"type": "text", "text": _text_of(part, "text", place)}
    if kind == "refusal":
        return {"type": "text", "text": _text_of(part, "refusal", place)}
    if kind == "input_image":
        if part.get("file_id"):
            raise PromptError(f"{place}.file_id", f"{place}.file_id: files are not kept here; send image_url")
        return {"type": "image_url", "image_url": {"url": _text_of(part, "image_url", place)}}
    raise PromptError(f"{place}.type", f"{place}.type: {kind!r} is not supported; send input_text or input_image")


def _texts(parts: Any, place: str) -> Iterator[str]:
    if not isinstance(parts, list | tuple):
        raise PromptError(place, f"{place} must be a list of parts")
    for index, part in enumerate(parts):
        if not isinstance(part, dict) or part.get("type") not in _TEXTS:
            raise PromptError(
                f"{place}[{index}].type", f"{place}[{index}].type: must be reasoning_text or summary_text"
            )
        yield _text_of(part, "text", f"{place}[{index}]")


def _as_parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _tools(tools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str | None, Mapping[str, Any]]]:
    """Place, namespace and tool, without tools of `_PASSED_OVER`. Unwraps functions in the form of a chat."""
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if tool.get("type") in _PASSED_OVER:
            continue
        if tool.get("type") != "namespace":
            function = tool.get("function")
            yield place, None, {"type": "function", **function} if isinstance(function, dict) else tool
            continue
        inner = tool.get("tools")
        if not isinstance(inner, list) or not all(isinstance(each, dict) for each in inner):
            raise PromptError(f"{place}.tools", f"{place}.tools must be a list of tools")
        namespace = _text_of(tool, "name", place)
        yield from ((f"{place}.tools[{number}]", namespace, each) for number, each in enumerate(inner))


def _chat_name(name: Any, namespace: Any) -> Any:
    """The name of a tool in the chat."""
    return f"{namespace.removesuffix(_JOIN)}{_JOIN}{name}" if isinstance(namespace, str) and namespace else name


def _functions(tools: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for place, namespace, tool in _tools(tools):
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            problem = "is not supported: nothing runs tools here; send functions or custom tools, which you run"
            raise PromptError(f"{place}.type", f"{place}.type: {kind!r} {problem}")
        function: dict[str, Any] = {"name": _chat_name(_text_of(tool, "name", place), namespace)}
        if kind == "custom":
            function |= function_of(tool)
        else:
            function["parameters"] = tool.get("parameters") or {"type": "object", "properties": {}}
            function |= {name: tool[name] for name in ("strict", "description") if tool.get(name) is not None}
        yield {"type": "function", "function": function}


def _choice(request: ResponsesRequest) -> Any:
    choice = request.tool_choice
    if choice is None or isinstance(choice, str):
        return choice
    kind = choice.get("type")
    if kind in ("function", "custom"):
        return _named(choice)
    if kind == "allowed_tools":
        tools = [_named(tool if isinstance(tool, dict) else {}) for tool in choice.get("tools") or ()]
        return {"type": kind, "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}
    field = "tool_choice.type"
    raise PromptError(field, f"{field}: {kind!r} is not supported; send function, custom or allowed_tools")


def _named(choice: Mapping[str, Any]) -> dict[str, Any]:
    nested = choice.get("function")
    name = nested.get("name") if isinstance(nested, dict) else choice.get("name")
    return {"type": "function", "function": {"name": _chat_name(name, choice.get("namespace"))}}


def _format(text: Mapping[str, Any]) -> dict[str, Any] | None:
    form = text.get("format")
    if not isinstance(form, dict):
        if form is not None:
            raise PromptError("text.format", "text.format must be an object")
        return None
    if form.get("type") != "json_schema":
        return dict(form)
    names = ("name", "schema", "strict", "description")
    return {"type": "json_schema", "json_schema": {name: form[name] for name in names if name in form}}


def _reasoning(reasoning: Mapping[str, Any]) -> dict[str, Any]:
    effort = reasoning.get("effort")
    return {} if effort is None else {"reasoning_effort": effort}


def _logprobs(request: ResponsesRequest) -> dict[str, Any]:
    if not request.top_logprobs and "message.output_text.logprobs" not in (request.include or ()):
        return {}
    return {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
