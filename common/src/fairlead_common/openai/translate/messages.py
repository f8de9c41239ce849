"""Anthropic's Messages API → chats, and answers back. Pure.

A field without an equal in a chat is refused by name. Fields without effect on the answer are taken: `metadata`,
signatures of thinking, `eager_input_streaming`, and `redacted_thinking`, for Anthropic alone. Breakpoints
(`cache_control`) become retention hints for the messages up to them.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from fairlead_common.openai.budget import MAX_MESSAGES, MAX_TOOLS, ModelName, check_json
from fairlead_common.openai.prompts import PromptError
from fairlead_common.openai.translate.chat_answers import EVENT_STREAM
from fairlead_common.openai.translate.decoding import Places
from fairlead_common.openai.translate.message_blocks import (
    SERVERS_BLOCKS,
    TOOL_CHANGES,
    BytesSource,
    CacheControl,
    CompactionBlock,
    DocumentBlock,
    ImageBlock,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from fairlead_common.openai.unknown_fields import UnknownFields

COUNT_TOKENS_PATH = "/v1/messages/count_tokens"
MESSAGE_BATCHES_PATH = "/v1/messages/batches"
_ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "overloaded_error"}
_LONGEST_PLACE = 200
"""Characters of the place of a problem; names from the client may be long."""
_UNTHREADED = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
"""Tells tool runners of Anthropic's clients, which begin threads unasked, to send whole conversations from then on."""
_NOT_COUNTED = b'{"message": "What serves this model does not count the tokens of chats."}'
_FOR_ANTHROPIC = re.compile(r"\A\s*x-anthropic-billing-header:.*\n?")
"""A line for Anthropic at the beginning of Claude Code's `system`. The line differs from request to request: a
prompt with the line would share no prefix with the last."""
_TOOL_ERROR = "Error: "
"""Before the content of a `tool_result` with `is_error`: a chat has no field for it."""
_UNREAD_DOCUMENT = "(a document, which this model cannot read)"
"""What the model is told in place of a PDF that a tool gave, as of images in results: a refusal would end the
conversation for good."""


class UserMessage(msgspec.Struct, tag_field="role", tag="user", forbid_unknown_fields=True, frozen=True):
    """What a user says, and what tools gave."""

    content: str | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolResultBlock | TOOL_CHANGES]


class AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant", forbid_unknown_fields=True, frozen=True):
    """What the model said; as the last message, the beginning of its answer."""

    content: (
        str | list[TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | CompactionBlock | SERVERS_BLOCKS]
    )


class SystemMessage(msgspec.Struct, tag_field="role", tag="system", forbid_unknown_fields=True, frozen=True):
    """Instructions in the middle of a conversation."""

    content: str | list[TextBlock | TOOL_CHANGES]
    clear_at: Literal["next_user_message", "never"] | None = None
    """Until when they stand in the conversation."""
    output_config: Any = None
    """No effect."""


class CustomTool(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A function that the client runs; or a search for such functions, without effect, as models see all of them."""

    name: str
    input_schema: dict[str, Any] | None = None
    """None = of a search."""
    description: str | None = None
    type: (
        Literal[
            "custom",
            "tool_search_tool_regex",
            "tool_search_tool_regex_20251119",
            "tool_search_tool_bm25",
            "tool_search_tool_bm25_20251119",
        ]
        | None
    ) = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    input_examples: Any = None
    """No effect."""
    defer_loading: bool | None = None
    """No effect."""
    allowed_callers: list[Literal["direct"]] | None = None

    @property
    def is_search(self) -> bool:
        return self.type not in (None, "custom")


class ToolChoice(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which tools an answer may or must call. Changes no prompt."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Whether the model is to reason; `adaptive` and `between_tools` are the chat template's default."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: str | None = None
    """No effect: reasoning is what the model wrote, and comes back in later requests."""


class JsonOutput(msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True, frozen=True):
    """A schema that the answer's text keeps to. Changes no prompt."""

    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How an answer is to be written. Changes no prompt."""

    effort: str | None = None
    """No effect."""
    format: JsonOutput | None = None


class CountTokensRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`POST /v1/messages/count_tokens`, as Anthropic's clients send it."""

    messages: Annotated[
        list[UserMessage | AssistantMessage | SystemMessage], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)
    ]
    model: ModelName | None = None
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[CustomTool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonOutput | None = None
    """The older name of `output_config.format`."""
    metadata: Any = None
    """Its `user_id` names the session to gateways; the rest has no effect."""
    cache_control: CacheControl | None = None
    speed: str | None = None
    """No effect."""
    compaction: Any = None
    """No effect on the tokens of the conversation as it was sent."""


Asked = TypeVar("Asked", bound=CountTokensRequest)


class InputTokens(msgspec.Struct, frozen=True):
    """Reply of `/v1/messages/count_tokens`."""

    input_tokens: int


class DialectError(msgspec.Struct, frozen=True, omit_defaults=True):
    """What Anthropic's clients show of an error."""

    type: str
    message: str
    details: dict[str, Any] | None = None
    """What clients act by."""


class DialectErrorReply(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """The body of every refusal in Anthropic's shape."""

    error: DialectError
    request_id: str


class Chat(NamedTuple):
    """A conversation in the OpenAI form."""

    fields: dict[str, Any]
    """`messages`, and optionally `tools`, `chat_template_kwargs` and the fields for the end of the prompt."""
    places: Places
    """The places in Anthropic's request."""
    told_in: Sequence[str]
    """Of each message."""


class MessagesDialect:
    """Refusals of a request, told in Anthropic's terms."""

    stream_type = EVENT_STREAM

    def __init__(self) -> None:
        self._places = Places()
        """The places in Anthropic's request."""

    def refusal(self, status: int, body: bytes, request_id: str) -> tuple[int, bytes]:
        """Status and body of a refusal. `body`: in OpenAI's shape, or any other."""
        return status, msgspec.json.encode(DialectErrorReply(self.error(status, body), request_id))

    def error(self, status: int, body: bytes) -> DialectError:
        """The problem, with places in Anthropic's request."""
        kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        try:
            told = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            told = {}
        error = told.get("error", told)
        error = error if isinstance(error, dict) else {}
        message, field = error.get("message"), error.get("param")
        if not isinstance(message, str):
            return DialectError(kind, f"What serves this model answered with HTTP {status}.")
        if isinstance(field, str) and field not in message:
            message = f"{field}: {message}"
        details = _UNTHREADED if field == "thread" else None
        return DialectError(kind, self._places.told(message).replace("image_url", "image"), details)

    def events(self, data: bytes) -> bytes:
        """Events of a stream, as they are."""
        return data


class CountTokens(MessagesDialect):
    """A request to `/v1/messages/count_tokens` as a request to `/tokenize`."""

    def request(self, body: bytes, unknown: UnknownFields) -> tuple[str, bytes]:
        """Path and body. Raises PromptError and OverBudget."""
        request = decoded(body, CountTokensRequest, unknown)
        chat = chat_of(request)
        self._places = chat.places
        model = {} if request.model is None else {"model": request.model}
        return "/tokenize", msgspec.json.encode(model | chat.fields)

    def answer(self, status: int, body: bytes, request_id: str) -> tuple[int, bytes]:
        """Status and body of the answer of `/tokenize`, or of a refusal."""
        if status < 400:
            try:
                return status, msgspec.json.encode(InputTokens(tokens_reply.decode(body).count))
            except (msgspec.DecodeError, UnicodeDecodeError):
                return self.refusal(502, _NOT_COUNTED, request_id)
        return self.refusal(status, body, request_id)


class MessageBatches(MessagesDialect):
    """A request to `/v1/messages/batches`, or below, which speaks of no chat."""

    def request(self, body: bytes, unknown: UnknownFields) -> tuple[str, bytes]:
        """As it is."""
        return MESSAGE_BATCHES_PATH, body

    def answer(self, status: int, body: bytes, request_id: str) -> tuple[int, bytes]:
        """Refusals in Anthropic's terms; all else has them."""
        return (status, body) if status < 400 else self.refusal(status, body, request_id)


def chat_of(request: CountTokensRequest, question: str | None = None) -> Chat:
    """The conversation as a chat, with a last question of the user. Raises PromptError."""
    fields: dict[str, Any] = {"messages": [], "add_generation_prompt": True}
    places = []
    for place, message in _chat_messages(request):
        places.append(place)
        fields["messages"].append(message)
    if not places:
        raise PromptError("messages", "messages: says nothing to the model; add a message of the user")
    last = fields["messages"][-1]
    if question is not None and last["role"] == "user":  # templates may want turns to alternate
        said = [_text(last["content"])] if isinstance(last["content"], str) else last["content"]
        fields["messages"][-1] = last = {**last, "content": [*said, _text(f"\n\n{question}")]}
    elif question is not None:
        last = {"role": "user", "content": question}
        places.append("messages")
        fields["messages"].append(last)
    if last["role"] == "assistant" and last["content"] and "tool_calls" not in last:
        fields |= {"add_generation_prompt": False, "continue_final_message": True}
    tools = {f"tools.{index}": tool for index, tool in enumerate(request.tools or ()) if not tool.is_search}
    if tools:
        fields["tools"] = [{"type": "function", "function": _function(*each)} for each in tools.items()]
    _check_choice(request, [tool.name for tool in tools.values()])
    if request.thinking is not None and request.thinking.type in ("enabled", "disabled"):
        is_on = request.thinking.type == "enabled"
        fields["chat_template_kwargs"] = {"enable_thinking": is_on, "thinking": is_on}  # Qwen's name, DeepSeek's
    return Chat(fields, Places(places, tuple(tools), _NAMES), places)


def cache_options_of(request: CountTokensRequest, chat: Chat) -> dict[str, Any] | None:
    """`prompt_cache_options` of the chat, by the last breakpoint of each time; None = there is no breakpoint. A
    breakpoint covers its message; a breakpoint of tools, the first message, where templates show tools; a breakpoint at
    the top level, the whole prompt."""
    numbers = {place: number for number, place in enumerate(chat.told_in, 1)}
    ends = {} if request.cache_control is None else {request.cache_control.ttl or "5m": len(chat.told_in)}
    contents = {"system": request.system} | {f"messages.{i}": each.content for i, each in enumerate(request.messages)}
    found = [(chat.told_in[0], tool.cache_control) for tool in request.tools or ()]
    found += [(place, each) for place, content in contents.items() for each in _breakpoints(content)]
    for place, control in found:
        if control is not None and place in numbers:  # behind the last summary
            ends[control.ttl or "5m"] = max(numbers[place], ends.get(control.ttl or "5m", 0))
    whole = [time for time, end in ends.items() if end == len(chat.told_in)]
    options: dict[str, Any] = {"ttl": "1h" if "1h" in whole else "5m"} if whole else {}
    if prefixes := {time: end for time, end in ends.items() if time not in whole}:
        options["prefixes"] = prefixes
    return options or None


def _breakpoints(content: Any) -> Iterator[CacheControl | None]:
    for block in content if isinstance(content, list) else ():
        yield getattr(block, "cache_control", None)
        if isinstance(block, ToolResultBlock):
            yield from _breakpoints(block.content)


def _chat_messages(request: CountTokensRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each message and its place in Anthropic's request."""
    if system := _system(request.system or ""):
        yield "system", {"role": "system", "content": system}
    users = [index for index, message in enumerate(request.messages) if isinstance(message, UserMessage)]
    for index, message in _since_summary(request.messages):
        place = f"messages.{index}"
        match message:
            case AssistantMessage(content):
                yield place, _assistant(content)
            case SystemMessage(_, "next_user_message") if users and users[-1] > index:
                pass
            case SystemMessage(content):
                if (system := _system(content)) or not content:
                    yield place, {"role": "system", "content": system}
            case UserMessage(content):
                yield from ((place, each) for each in _user(content, f"{place}.content"))


def _system(content: str | Sequence[Any]) -> str | list[dict[str, Any]]:
    """Without what is for Anthropic alone."""
    if isinstance(content, str):
        return _FOR_ANTHROPIC.sub("", content)
    said = (block.text for block in content if isinstance(block, TextBlock))
    texts = ((text, _FOR_ANTHROPIC.sub("", text)) for text in said)
    return [_text(text) for given, text in texts if text or not given]


def _since_summary(messages: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Each message and its index; a summary as a message of the user, without what it stands for."""
    found = _last_summary(messages)
    if found is None:
        yield from enumerate(messages)
        return
    first, place = found
    blocks = messages[first].content
    yield first, UserMessage(blocks[place].content)
    if rest := blocks[place + 1 :]:
        yield first, AssistantMessage(rest)
    yield from enumerate(messages[first + 1 :], first + 1)


def _last_summary(messages: Sequence[Any]) -> tuple[int, int] | None:
    """Index of the message and of the block."""
    for index in reversed(range(len(messages))):
        content = messages[index].content
        for place in reversed(range(0 if isinstance(content, str) else len(content))):
            if isinstance(content[place], CompactionBlock) and content[place].content:
                return index, place
    return None


def _user(content: str | Sequence[Any], place: str) -> Iterator[dict[str, Any]]:
    """Results of tools as separate messages, in order, with the content between results as messages of the user."""
    said: list[dict[str, Any]] = []
    blocks = [] if isinstance(content, str) else content
    has_results = any(isinstance(block, ToolResultBlock) for block in blocks)  # Claude Code puts a PDF behind its own
    for index, block in enumerate(blocks):
        if isinstance(block, TOOL_CHANGES):
            continue
        if not isinstance(block, ToolResultBlock):
            said += _parts(_result_block(block) if has_results else block, f"{place}.{index}")
            continue
        if said:
            yield {"role": "user", "content": said}
            said = []
        told = block.content if isinstance(block.content, str) else [*map(_result_block, block.content or ())]
        result = _content(told or "", f"{place}.{index}.content")
        if block.is_error:
            result = f"{_TOOL_ERROR}{result}" if isinstance(result, str) else [_text(_TOOL_ERROR), *result]
        yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": result}
    if said or isinstance(content, str) or not content:
        yield {"role": "user", "content": content if isinstance(content, str) else said}


def _result_block(block: Any) -> Any:
    """A block that a tool gave, as far as the model can read it."""
    is_unread = isinstance(block, DocumentBlock) and isinstance(block.source, BytesSource)
    return TextBlock(text=_UNREAD_DOCUMENT) if is_unread else block


def _assistant(content: str | Sequence[Any]) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts = [block.text for block in content if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in content if isinstance(block, ThinkingBlock)]
    calls = [
        {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": _json(use.input)}}
        for use in content
        if isinstance(use, ToolUseBlock)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def _content(content: str | Sequence[Any], place: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    return [part for index, block in enumerate(content) for part in _parts(block, f"{place}.{index}")]


def _parts(
    block: TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock, place: str
) -> list[dict[str, Any]]:
    """The parts of a chat's message for a block."""
    if isinstance(block, TextBlock):
        return [_text(block.text)]
    if isinstance(block, ToolReferenceBlock):
        return [_text(f"{block.tool_name}\n")]
    if isinstance(block, ImageBlock):
        return [{"type": "image_url", "image_url": {"url": block.source.image_url}}]
    if block.citations and block.citations.get("enabled") is not False:
        field = f"{place}.citations"
        raise PromptError(field, f"{field}: citations are not supported; leave them out")
    if isinstance(block, SearchResultBlock):
        return [_text(f"{block.title}\n{block.source}\n\n"), *(_text(each.text) for each in block.content)]
    source = block.source
    if isinstance(source, BytesSource):
        field = f"{place}.source.type"
        raise PromptError(field, f"{field}: 'base64' is not supported; {_SOURCES}")
    read = _content(source.data if isinstance(source, TextSource) else source.content, f"{place}.source.content")
    head = [_text(f"{each}\n\n") for each in (block.title, block.context) if each]
    return [*head, *([_text(read)] if isinstance(read, str) else read)]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _function(place: str, tool: CustomTool) -> dict[str, Any]:
    if tool.input_schema is None:
        raise PromptError(f"{place}.input_schema", f"{place}.input_schema: is missing")
    described = {} if tool.description is None else {"description": tool.description}
    strict = {} if tool.strict is None else {"strict": tool.strict}
    return {"name": tool.name, **described, "parameters": tool.input_schema, **strict}


def _check_choice(request: CountTokensRequest, names: Sequence[str]) -> None:
    choice = request.tool_choice
    if choice is None or choice.type in ("auto", "none"):
        return
    if not names:
        raise PromptError("tool_choice", "tool_choice: there are no tools to choose from; send tools, or leave it out")
    if choice.type == "tool" and choice.name not in names:
        problem = f"tool_choice.name: {choice.name!r} is none of the tools; send the name of one of them"
        raise PromptError("tool_choice.name", problem)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class _TokensReply(msgspec.Struct, frozen=True):
    count: int


tokens_reply: msgspec.json.Decoder[_TokensReply] = msgspec.json.Decoder(_TokensReply)
"""Of `/tokenize`."""
_NAMES = (
    (r"(tools\.\d+)\.parameters\b", r"\1.input_schema"),
    (r"\bresponse_format\.json_schema\.", "output_config.format."),
    (r"^(output_config\.format.*), or send strict = false.*", r"\1"),
    (r"^stop\b", "stop_sequences"),
)
"""Places in a chat, as patterns → those in a request. A schema of the answer is always strict."""
_PLACED = re.compile(r"(?P<problem>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_NAMED = re.compile(r"Object (?P<what>contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL)
_NOTHING_ELSE = ("Expected `null`,", "Expected `array` of length <= 0")
"""Beginnings of errors about fields without support."""
_SOURCES = "images have sources of type base64 and url, documents, which must be text, of type text and content"
_ADVICE = (
    (r".*\bcache_control\.type", "send ephemeral"),
    (r".*\bcache_control\.ttl", "send 5m or 1h"),
    (r"messages\.\d+\.role", "send user, assistant or system"),
    (r".*\bsource\.type", _SOURCES),
    (r".*\bmedia_type", "send image/jpeg, image/png, image/gif or image/webp, and text/plain for a document"),
    (r"context_management\.edits\.\d+\.type", "send clear_thinking_20251015, clear_tool_uses_20250919 or the like"),
    (r"tools\.\d+\.type", "send tools of type custom, with name, description and input_schema"),
    (r".*\bcontent\.\d+\.tool\.type", "send tools in tools, and refer to them by tool_reference"),
    (r"tool_choice\.type", "send auto, any, tool or none"),
    (r"thinking\.type", "send enabled, disabled, adaptive or between_tools"),
    (r"output_(config\.)?format\.type", "send json_schema"),
    (r"tools\.\d+\.allowed_callers\.\d+", "send direct: only the model calls here"),
    (
        r".*\bcontent\.\d+\.type",
        "a user's message has blocks of type text, image, document, search_result and tool_result, an assistant's of "
        "type text, thinking, redacted_thinking and tool_use, a tool_result of type text, image, document, "
        "search_result and tool_reference; system has texts",
    ),
    (r".*", "send another"),
)
"""Place → advice for an unknown value."""


def decoded(body: bytes, schema: type[Asked], unknown: UnknownFields) -> Asked:
    """Raises PromptError and OverBudget."""
    check_json(body)
    try:
        return unknown.decode(body, schema)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PromptError("", f"the request body is not valid JSON: {error}") from None
    except RecursionError:
        raise PromptError("", "the request body is nested too deeply") from None


def _refusal(error: str) -> PromptError:
    """What msgspec says, in Anthropic's way to write places: `messages.0.content`."""
    found = _PLACED.fullmatch(error)
    assert found is not None  # the pattern matches any text
    problem, path = found["problem"], re.sub(r"\[(\d+|\.\.\.)\]", r".\1", found["path"] or "").lstrip(".")
    if named := _NAMED.fullmatch(problem):
        path = f"{path}.{named['name']}".lstrip(".")
        problem = "is missing" if named["what"].startswith("missing") else "is not supported; leave it out"
    elif problem.startswith(_NOTHING_ELSE):
        problem = "is not supported; leave it out"
    elif problem.startswith("Invalid") or " matching regex " in problem:
        advice = next(advice for pattern, advice in _ADVICE if re.fullmatch(pattern, path))
        value = re.fullmatch(r"Invalid (?:enum )?value (.*)", problem)
        problem = f"{'its value' if value is None else value[1]} is not supported; {advice}"
    else:
        problem = problem[:1].lower() + problem[1:]
    path = path[:_LONGEST_PLACE]
    return PromptError(path, f"{path or 'the request body'}: {problem}")
