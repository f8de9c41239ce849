"""OpenAI's Responses API → chats. Pure.

Where nothing is stored, each request brings its whole history (`input`), and what refers to an earlier response is
refused by name. A custom tool becomes a function with one text, `input`; a tool of a namespace a function with the
names of both, joined by `__`. Tools and choices in the form of a chat, which some clients send, are taken as well.
Histories of other servers are read: what a client ran there was a call of a function, what only their server can read
or ran by itself is passed over, and tools that items bring are the request's. A request that ends with a trigger of
compaction is a chat that asks for a summary; an item with such a summary stands for what is before it, except for the
messages of the user and of the system.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from fairlead_common.openai.budget import MAX_MESSAGES, MAX_TOOLS, Metadata, ModelName
from fairlead_common.openai.prompts import PromptError
from fairlead_common.openai.tool_forms import INPUT_OF_CUSTOM, function_of
from fairlead_common.openai.translate.decoding import Places, decoded, tag_of
from fairlead_common.openai.translate.summaries import ASKS_FOR_SUMMARY, opened
from fairlead_common.openai.unknown_fields import UnknownFields

RESPONSES_PATH = "/v1/responses"
INPUT_TOKENS_PATH = "/v1/responses/input_tokens"
TRIGGER = "compaction_trigger"
"""Type of an item, the last one, that asks for a compaction."""
_COMPACTIONS = ("compaction", "compaction_summary", "context_compaction")
"""Types of items with a summary that this server or another wrote."""
_NOT_KEPT = "responses are not kept here; send the whole conversation as input"
_PASSED_OVER = ("web_search", "web_search_preview", "web_search_2025_08_26", "image_generation", "tool_search")
"""Types of tools without effect: nobody searches or draws here, and models see all tools at once. A search
by the client is a function."""
SEARCH = "tool_search"
"""Type of a search, and the name of a client's search in the chat."""
_CONFIGURATION = "configuration_update"
"""Type of items that change fields of the request."""
_BRINGS_TOOLS = ("additional_tools", "tool_search_output")
"""Types of items whose `tools` the model has, too."""
_UNREAD = (
    *_BRINGS_TOOLS, "tool_search_call", "web_search_call", "file_search_call", "code_interpreter_call",
    "image_generation_call", "mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response", "program",
    "program_output", _CONFIGURATION, TRIGGER,
)  # fmt: skip
"""Types of items without a message: run by another server, of which the answer that follows says what was found."""
_CLIENTS_CALLS = {"local_shell_call": "action", "shell_call": "action", "apply_patch_call": "operation"}
"""Types of calls of tools that clients run → the field with the arguments."""
_OF_A_CHAT = (
    "frequency_penalty", "presence_penalty", "repetition_penalty", "top_k", "min_p", "seed", "stop", "logit_bias",
    "ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "structured_outputs", "chat_template_kwargs",
    "cache_salt", "priority", "prompt_cache_options", "prompt_cache_retention",
)  # fmt: skip
"""Fields that a chat has by the same names."""
_NOT_OF_SUMMARIES = (
    "response_format", "structured_outputs", "stop", "logprobs", "top_logprobs", "parallel_tool_calls", "tool_choice",
)  # fmt: skip
"""Fields of a chat that its summary does not keep to."""
_JOIN = "__"
"""Between the names of a namespace and of its tool."""
_USERS = ("user", "system", "developer")
"""Roles of messages that stay beside a summary."""
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_NAMES = (
    (r"\bresponse_format\.json_schema\b", "text.format"),
    (r"\bresponse_format\b", "text.format"),
    (r"\breasoning_effort\b", "reasoning.effort"),
    (r"\bmax_tokens\b", "max_output_tokens"),
    (r'"param":"messages"', '"param":"input"'),
)
"""Places in a chat, as patterns → those in a request."""


class ResponsesRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`POST /v1/responses`, as OpenAI's clients send it."""

    input: str | Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    """None = nothing, which a compaction of an earlier response alone takes."""
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
    """`effort` reaches chat templates with such a variable; the rest has no effect."""
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
    """No effect; `compaction_trigger` as the last item compacts."""
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    """Retention hints of a chat."""
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

    @property
    def items(self) -> list[tuple[str, dict[str, Any]]]:
        """Places and items of `input`."""
        if isinstance(self.input, str):
            return [("input", {"type": "message", "role": "user", "content": self.input})]
        return [(f"input[{index}]", item) for index, item in enumerate(self.input or ())]

    @property
    def asks_for_summary(self) -> bool:
        """Whether the answer is a compaction."""
        return isinstance(self.input, list) and self.input[-1].get("type") == TRIGGER

    def tool(self, name: str | None) -> tuple[dict[str, str], str]:
        """For a tool's name in the chat: `name` and perhaps `namespace` of the tool, and the tool's type."""
        for _, namespace, tool in _tools(self.tools or ()):
            if _chat_name(tool.get("name"), namespace) == name:
                names = {"name": str(tool["name"])} | ({} if namespace is None else {"namespace": namespace})
                return names, str(tool.get("type"))
        return {"name": name or ""}, "function"


class Kept(msgspec.Struct):
    """What a store knows of a new response."""

    id: str
    before: Sequence[Mapping[str, Any]] = ()
    """Items of the conversation before `input`."""
    is_stored: bool = True


def decoded_response(body: bytes, unknown: UnknownFields, kept: Kept | None = None) -> ResponsesRequest:
    """`kept`: None = responses are not stored. Raises PromptError and OverBudget."""
    return checked(decoded(body, ResponsesRequest, unknown), kept)


def checked(request: ResponsesRequest, kept: Kept | None = None) -> ResponsesRequest:
    """The request with the tools that items bring. Raises PromptError."""
    for field in ("conversation", "prompt", *(() if kept else ("background", "previous_response_id"))):
        if getattr(request, field):
            raise PromptError(field, f"{field}: {_NOT_KEPT}")
    if request.input is None:
        raise PromptError("input", "input: is missing")
    for place, item in request.items[:-1]:
        if item.get("type") == TRIGGER:
            raise PromptError(f"{place}.type", f"{place}.type: a {TRIGGER} must be the last item")
    changed: dict[str, Any] = {
        name: value for each in ("reasoning", "text") for name, value in _changes(request, kept, each)
    }
    if brought := list(_brought(request, kept.before if kept else ())):
        changed["tools"] = [*(request.tools or ()), *brought]
    return msgspec.structs.replace(request, **changed) if changed else request


def _changes(request: ResponsesRequest, kept: Kept | None, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and value of a field after each change by an item, in order. Raises PromptError."""
    value = getattr(request, name) or {}
    for place, item in [*(("previous_response_id", item) for item in (kept.before if kept else ())), *request.items]:
        if item.get("type") != _CONFIGURATION or item.get(name) is None:
            continue
        if not isinstance(item[name], dict):
            raise PromptError(f"{place}.{name}", f"{place}.{name} must be an object")
        value = value | item[name]
        yield name, value


def _brought(request: ResponsesRequest, before: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Tools that items bring and the request does not have. Raises PromptError."""
    items = [*(("previous_response_id", item) for item in before), *request.items]
    bringing = [(f"{place}.tools", item.get("tools")) for place, item in items if item.get("type") in _BRINGS_TOOLS]
    if not bringing:
        return
    known = {str(_chat_name(tool.get("name"), namespace)) for _, namespace, tool in _tools(request.tools or ())}
    for place, tools in bringing:
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise PromptError(place, f"{place} must be a list of tools")
        for where, namespace, tool in _tools(tools, place):
            _check_type(where, tool)
            name = _chat_name(_text_of(tool, "name", where), namespace)
            if name not in known:
                known.add(name)
                yield dict(tool) if namespace is None else {"type": "namespace", "name": namespace, "tools": [tool]}


def chat_fields_of(request: ResponsesRequest, kept: Kept | None = None) -> tuple[dict[str, Any], Places]:
    """Fields of the chat, and where they stand in the request. Raises PromptError."""
    history = _History()
    if request.instructions:
        history.add("instructions", {"role": "system", "content": request.instructions})
    for item in kept.before if kept else ():
        history.read("previous_response_id", item)
    for place, item in request.items:
        history.read(place, item)
    if request.asks_for_summary and not history.messages:
        raise PromptError("input", "input: there is no conversation to compact; send its messages before the trigger")
    history.join(asks_for_summary=request.asks_for_summary)
    tools = list(_functions(request.tools or ()))
    given = {
        "model": request.model,
        "max_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "parallel_tool_calls": request.parallel_tool_calls if request.tools else None,
        "response_format": _format(request.text or {}),
        "tools": [tool for _, tool in tools] or None,
        "tool_choice": _choice(request),
        "prompt_cache_key": tag_of(request.prompt_cache_key),
        "user": tag_of(request.user),
        **{name: getattr(request, name) for name in _OF_A_CHAT},
        **_reasoning(request.reasoning or {}),
        **_logprobs(request),
    }
    fields = {name: value for name, value in given.items() if value is not None}
    if "tools" not in fields:
        if fields.pop("tool_choice", "auto") not in ("auto", "none"):
            problem = "nothing runs the tools that were sent" if request.tools else "there are no tools to choose from"
            raise PromptError("tool_choice", f"tool_choice: {problem}; send functions or custom tools, or auto")
        fields.pop("parallel_tool_calls", None)
    if request.asks_for_summary:
        fields = {name: value for name, value in fields.items() if name not in _NOT_OF_SUMMARIES}
        fields |= {"tool_choice": "none"} if "tools" in fields else {}
    places = Places(history.places, [place for place, _ in tools], _NAMES)
    return fields | {"messages": history.messages, "best_effort": True}, places


class _History:
    """Items → messages: consecutive reasoning and calls become a single message of the assistant, and instructions at
    the beginning a single system message, since templates know no second."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: list[str] = []
        self._thought = ""
        """Reasoning before the next message or call of the assistant."""
        self._call_ids: set[str] = set()
        """Of calls behind the last summary."""
        self._summary: int | None = None
        """The index of the last summary that was written here, before which are messages of system and user alone."""

    def read(self, place: str, item: Mapping[str, Any]) -> None:
        kind = item.get("type")
        if kind is None:
            if "role" not in item:
                raise PromptError(f"{place}.type", f"{place}.type: is missing; send the type of the item")
            kind = "message"
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
                self._result(place, _text_of(item, "call_id", place), output)
            case "tool_search_call" | "tool_search_output" if item.get("execution") == "client":
                self._search(place, item, kind)
            case "agent_message":
                parts = item.get("content")
                if isinstance(parts, list):  # what only its author's server can read is left out
                    parts = [each for each in parts if not isinstance(each, dict) or "encrypted_content" not in each]
                if parts or not isinstance(parts, list):
                    self.add(place, {"role": "user", "content": _content(parts, f"{place}.content")})
            case "local_shell_call" | "shell_call" | "apply_patch_call":
                self._clients_call(place, item, kind)
            case "local_shell_call_output" | "shell_call_output" | "apply_patch_call_output":
                told = item.get("output") or ""
                text = told if isinstance(told, str) else msgspec.json.encode(told).decode()
                self._result(place, _id_of(item, place), text)
            case _ if kind in _COMPACTIONS:
                self._compaction(place, opened(item.get("encrypted_content"), f"{place}.encrypted_content"))
            case _ if kind in _UNREAD:
                pass
            case "item_reference":
                raise PromptError(f"{place}.type", f"{place}.type: {_NOT_KEPT}")
            case _:
                problem = "is not supported; send messages, reasoning, calls of functions or custom tools, and outputs"
                raise PromptError(f"{place}.type", f"{place}.type: {kind!r} {problem}")

    def add(self, place: str, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.places.append(place)

    def join(self, *, asks_for_summary: bool) -> None:
        """Makes one message of a summary and the user's messages beside it, and of a last message of the user and the
        question for a summary: templates may want turns of the user and the assistant to alternate."""
        if self._summary is not None:
            first = last = self._summary
            while first > 0 and self.messages[first - 1]["role"] == "user":
                first -= 1
            while last + 1 < len(self.messages) and self.messages[last + 1]["role"] == "user":
                last += 1
            for message in self.messages[first + 1 : last + 1]:
                _join(self.messages[first], message["content"])
                self.places[first] = "input"
            del self.messages[first + 1 : last + 1], self.places[first + 1 : last + 1]
        if not asks_for_summary:
            return
        if self.messages and self.messages[-1]["role"] == "user":
            _join(self.messages[-1], ASKS_FOR_SUMMARY)
        else:
            self.add("input", {"role": "user", "content": ASKS_FOR_SUMMARY})

    def _compaction(self, place: str, summary: str | None) -> None:
        """`summary`: None = another server's, which nobody here can read."""
        if summary is None:
            return
        start, behind = (0, 0) if self._summary is None else (self._summary, self._summary + 1)
        beside = zip(self.messages[behind:], self.places[behind:], strict=True)
        kept = [(each, at) for each, at in beside if each["role"] in ("system", "user")]
        self.messages[start:], self.places[start:] = [each for each, _ in kept], [at for _, at in kept]
        self._thought, self._summary, self._call_ids = "", len(self.messages), set()
        self.add(place, {"role": "user", "content": summary})

    def _message(self, place: str, item: Mapping[str, Any]) -> None:
        role, calls = item.get("role"), item.get("tool_calls")
        if role not in ("user", "assistant", "system", "developer", "tool"):
            problem = f"must be user, assistant, system or developer, not {role!r}"
            raise PromptError(f"{place}.role", f"{place}.role {problem}")
        if role == "assistant" and calls and item.get("content") in (None, "", []):
            self._chats_calls(f"{place}.tool_calls", calls)
            return
        content = _content(item.get("content"), f"{place}.content")
        if role == "tool":
            self._result(place, _text_of(item, "tool_call_id", place), content)
        elif role == "assistant":
            self._answer(place, content)
            self._chats_calls(f"{place}.tool_calls", calls or [])
        elif role == "user":
            self.add(place, {"role": role, "content": content})
        elif self.messages and all(each["role"] == "system" for each in self.messages):
            _join(self.messages[-1], content)
        else:
            self.add(place, {"role": "system", "content": content})

    def _answer(self, place: str, content: str | list[dict[str, Any]]) -> None:
        """Behind calls it belongs to their message: templates want results right behind that."""
        last = self.messages[-1] if self.messages else {}
        if "tool_calls" in last and last["content"] is None and not self._thought:
            last["content"] = content
        else:
            self.add(place, {"role": "assistant", "content": content} | self._reasoning())

    def _result(self, place: str, call_id: str, content: str | list[dict[str, Any]]) -> None:
        """Of a call; a message of the user where a summary stands for the call: templates want calls first."""
        if self._summary is not None and call_id not in self._call_ids:
            self.add(place, {"role": "user", "content": content})
        else:
            self.add(place, {"role": "tool", "tool_call_id": call_id, "content": content})

    def _search(self, place: str, item: Mapping[str, Any], kind: str) -> None:
        call_id = _text_of(item, "call_id", place)
        if kind == "tool_search_call":
            arguments = msgspec.json.encode(item.get("arguments") or {}).decode()
            self._called(place, call_id, {"name": SEARCH, "arguments": arguments})
            return
        found = [_chat_name(tool.get("name"), namespace) for _, namespace, tool in _tools(item.get("tools") or ())]
        self._result(place, call_id, f"Tools found: {', '.join(map(str, found)) or 'none'}")

    def _chats_calls(self, place: str, calls: Any) -> None:
        """In the form of a chat, which some clients send."""
        for index, call in enumerate(calls if isinstance(calls, list) else [calls]):
            where, function = f"{place}[{index}]", call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                raise PromptError(f"{where}.function", f"{where}.function must be an object with name and arguments")
            names = {name: _text_of(function, name, f"{where}.function") for name in ("name", "arguments")}
            self._called(place, _text_of(call, "id", where), names)

    def _call(self, place: str, item: Mapping[str, Any], *, is_custom: bool) -> None:
        arguments = _text_of(item, "input" if is_custom else "arguments", place)
        if is_custom:
            arguments = msgspec.json.encode({INPUT_OF_CUSTOM: arguments}).decode()
        name = _chat_name(_text_of(item, "name", place), item.get("namespace"))
        self._called(place, _text_of(item, "call_id", place), {"name": name, "arguments": arguments})

    def _clients_call(self, place: str, item: Mapping[str, Any], kind: str) -> None:
        arguments = msgspec.json.encode(item.get(_CLIENTS_CALLS[kind]) or {}).decode()
        self._called(place, _id_of(item, place), {"name": kind.removesuffix("_call"), "arguments": arguments})

    def _called(self, place: str, call_id: str, function: Mapping[str, Any]) -> None:
        call = {"id": call_id, "type": "function", "function": function}
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or self._thought:
            self.add(place, {"role": "assistant", "content": None} | self._reasoning())
        self.messages[-1].setdefault("tool_calls", []).append(call)
        self._call_ids.add(call_id)

    def _reasoning(self) -> dict[str, Any]:
        thought, self._thought = self._thought, ""
        return {"reasoning_content": thought} if thought else {}


def _text_of(item: Mapping[str, Any], name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise PromptError(f"{place}.{name}", f"{place}.{name} must be a text")
    return value


def _id_of(item: Mapping[str, Any], place: str) -> str:
    """The id of a call, which outputs of local shells have as theirs."""
    return _text_of(item, "id" if item.get("call_id") is None and "id" in item else "call_id", place)


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
    if kind == "image_url":
        return dict(part)
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


def _join(message: dict[str, Any], content: str | list[dict[str, Any]]) -> None:
    """Adds content to a message, behind an empty line."""
    if isinstance(message["content"], str):
        message["content"] = _as_parts(message["content"])
    message["content"] += [{"type": "text", "text": "\n\n"}, *_as_parts(content)]


def _as_parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _tools(
    tools: Sequence[Mapping[str, Any]], where: str = "tools"
) -> Iterator[tuple[str, str | None, Mapping[str, Any]]]:
    """Place, namespace and tool, without tools of `_PASSED_OVER`. Unwraps functions in the form of a chat."""
    for index, tool in enumerate(tools):
        place = f"{where}[{index}]"
        if tool.get("type") == SEARCH and tool.get("execution") == "client":
            yield place, None, {**tool, "name": SEARCH}
            continue
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


def behind_summary(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items of a conversation for the model: before the last summary, tools and messages of user and system alone."""
    summaries = (index for index in reversed(range(len(items))) if items[index].get("type") in _COMPACTIONS)
    last = next((index for index in summaries if opened(items[index].get("encrypted_content"), "input")), 0)
    beside = (item for item in items[:last] if item.get("type") in _BRINGS_TOOLS or item.get("role") in _USERS)
    return [*beside, *items[last:]]


def _functions(tools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and function."""
    for place, namespace, tool in _tools(tools):
        _check_type(place, tool)
        function: dict[str, Any] = {"name": _chat_name(_text_of(tool, "name", place), namespace)}
        if tool["type"] == "custom":
            function |= function_of(tool)
        else:
            function["parameters"] = tool.get("parameters") or {"type": "object", "properties": {}}
            function |= {name: tool[name] for name in ("strict", "description") if tool.get(name) is not None}
        yield place, {"type": "function", "function": function}


def _check_type(place: str, tool: Mapping[str, Any]) -> None:
    kind = tool.get("type")
    if kind not in ("function", "custom", SEARCH):
        problem = "is not supported: nothing runs tools here; send functions or custom tools, which you run"
        raise PromptError(f"{place}.type", f"{place}.type: {kind!r} {problem}")


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
