"""Anthropic's `POST /v1/messages` → a chat, and the chat's answer → a message, whole or as events. Pure.

A chat's usage counts cached tokens among those of the prompt; a message's `input_tokens` leaves them out. Tokens that a
cache will keep are not counted (`cache_creation_input_tokens` 0), since nobody pays for them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from fairlead_common.openai.prompts import PromptError
from fairlead_common.openai.translate.chat_answers import (
    DONE,
    UNREADABLE,
    ChatCall,
    ChatChoice,
    ChatCompletion,
    ChatUsage,
    Said,
    completion,
    is_error,
    payloads,
)
from fairlead_common.openai.translate.decoding import tag_of
from fairlead_common.openai.translate.messages import (
    CountTokensRequest,
    MessagesDialect,
    cache_options_of,
    chat_of,
    decoded,
)
from fairlead_common.openai.translate.summaries import ASKS_FOR_SUMMARY
from fairlead_common.openai.unknown_fields import UnknownFields

MESSAGES_PATH = "/v1/messages"
_CHAT_PATH = "/v1/chat/completions"
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
"""`finish_reason` → `stop_reason`; any other is `end_turn`, or `stop_sequence` where a text ended the answer."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class ContextEdit(msgspec.Struct, frozen=True):
    """A rule for leaving parts of a long history out, such as `clear_thinking_20251015`, with the date of its version.
    No effect: what does not fit is refused."""

    type: Annotated[str, msgspec.Meta(pattern=r"^[a-z_]{1,64}_20\d{6}$")]


class ContextManagement(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Rules for a history that grows. Chat templates leave earlier reasoning out by themselves."""

    edits: list[ContextEdit] | None = None


class Summarize(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Asks for a summary of the conversation in place of an answer."""

    type: Literal["summarize"]
    instructions: str | None = None
    """In place of our own question."""

    @property
    def question(self) -> str:
        """The last message of the chat."""
        given = self.instructions or ""
        return given if given.strip() else ASKS_FOR_SUMMARY


class MessagesRequest(CountTokensRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`POST /v1/messages`, as Anthropic's clients send it."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    context_management: ContextManagement | None = None
    service_tier: str | None = None
    """No effect, as the next two."""
    inference_geo: str | None = None
    diagnostics: Any = None
    compaction: Summarize | None = None
    container: None = None
    thread: None = None
    """A conversation that the server keeps. To pass it over would lose all but the newest messages."""
    mcp_servers: Annotated[list[Any], msgspec.Meta(max_length=0)] | None = None


class Messages(MessagesDialect):
    """A request to `/v1/messages` as a chat."""

    def __init__(self) -> None:
        super().__init__()
        self._stream = _MessageStream()
        self._has_failed = False

    def request(self, body: bytes, unknown: UnknownFields) -> tuple[str, bytes]:
        request = decoded(body, MessagesRequest, unknown)
        chat = chat_of(request, None if request.compaction is None else request.compaction.question)
        self._places, self._stream.max_tokens = chat.places, request.max_tokens
        self._stream.is_summary = request.compaction is not None
        fields = chat.fields | _choice(request) | _thinking(request) | _format(request)
        given = {
            "model": request.model,
            "max_tokens": request.max_tokens,
            "stop": request.stop_sequences,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "prompt_cache_options": cache_options_of(request, chat),
            "user": tag_of(request.metadata.get("user_id")) if isinstance(request.metadata, dict) else None,
        }
        fields |= {name: value for name, value in given.items() if value is not None}
        if request.stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        return _CHAT_PATH, msgspec.json.encode(fields | {"best_effort": True})

    def answer(self, status: int, body: bytes, request_id: str) -> tuple[int, bytes]:
        if status >= 400:
            return self.refusal(status, body, request_id)
        try:
            return status, msgspec.json.encode(self._stream.whole(completion.decode(body)))
        except UNREADABLE:
            return self.refusal(502, b'{"message": "What serves this model does not answer chats."}', request_id)

    def events(self, data: bytes) -> bytes:
        """Events of a message for whole events of a chat, perhaps none."""
        told = []
        for payload in payloads(data):
            if self._has_failed:
                break  # nothing comes behind an error, be it another server's end
            if is_error(payload):
                self._has_failed = True
                told.append(_event({"type": "error", "error": self.error(500, payload)}))
            else:
                told += map(_event, self._stream.events(payload))
        return b"".join(told)


# -- Of a request ------------------------------------------------------------------------------------------------------


def _choice(request: MessagesRequest) -> dict[str, Any]:
    choice = request.tool_choice
    if request.compaction is not None:
        return _choice_of_summary(request)
    if choice is None or all(tool.is_search for tool in request.tools or ()):
        return {}
    if choice.type == "tool":
        chosen: Any = {"type": "function", "function": {"name": choice.name}}
    else:
        chosen = _CHOICES[choice.type]
    alone = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    return {"tool_choice": chosen, **alone}


def _choice_of_summary(request: MessagesRequest) -> dict[str, Any]:
    """Raises PromptError for fields that shape an answer and no summary."""
    shaped: dict[str, Any] = {
        "context_management": request.context_management,
        "stop_sequences": request.stop_sequences,
    }
    shaped["output_config.format"] = _format(request)
    if field := next((name for name, given in shaped.items() if given), None):
        raise PromptError(field, f"{field}: is not for a compaction; leave it out")
    return {"tool_choice": "none"} if any(not tool.is_search for tool in request.tools or ()) else {}


def _thinking(request: MessagesRequest) -> dict[str, Any]:
    """The bound of the reasoning. Raises PromptError for a bound without an answer behind it, as Anthropic does.
    Between calls of tools the bound is for all answers together, and may exceed the bound of a single answer."""
    budget = request.thinking.budget_tokens if request.thinking is not None else None
    if budget is None or request.thinking is None or request.thinking.type != "enabled":
        return {}
    if request.tools and budget >= request.max_tokens:
        return {}
    if not 0 <= budget < request.max_tokens:
        field = "thinking.budget_tokens"
        raise PromptError(field, f"{field}: must be from 0 to less than max_tokens ({request.max_tokens})")
    return {"thinking_token_budget": budget}


def _format(request: MessagesRequest) -> dict[str, Any]:
    kept_to = (request.output_config.format if request.output_config is not None else None) or request.output_format
    if kept_to is None:
        return {}
    schema = {"name": "answer", "schema": kept_to.schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


# -- Of an answer ------------------------------------------------------------------------------------------------------


_arguments: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NOTHING = ChatUsage()


def _message(answer: ChatCompletion, max_tokens: int) -> dict[str, Any]:
    choice = answer.choices[0] if answer.choices else ChatChoice()
    said = choice.message
    content: list[dict[str, Any]] = [_thinking_block(said.thought)] if said.thought else []
    content += [{"type": "text", "text": said.content}] if said.content else []
    content += [use for call in said.tool_calls or () if (use := _use(call)) is not None]
    usage = answer.usage or _NOTHING
    ending = _ending(choice, usage, max_tokens, has_calls=any(block["type"] == "tool_use" for block in content))
    return _head(answer) | {"content": content, **ending, "usage": _usage(usage)}


def _summary(answer: ChatCompletion, max_tokens: int) -> dict[str, Any]:
    """A message with nothing but the summary of the conversation."""
    choice = answer.choices[0] if answer.choices else ChatChoice()
    usage = answer.usage or _NOTHING
    content, ending = _summarised(choice, choice.message.content or "", usage, max_tokens)
    block = {"type": "compaction", "content": content}
    return _head(answer) | {"content": [block], **ending, "usage": _usage(usage)}


def _summarised(choice: ChatChoice, text: str, usage: ChatUsage, max_tokens: int) -> tuple[str | None, dict[str, Any]]:
    """The content of the block, and why it ended. None = there is no summary, or its end is missing: clients then keep
    the conversation."""
    ending = _ending(choice, usage, max_tokens, has_calls=False)
    if ending["stop_reason"] != "end_turn" or not text.strip():
        return None, ending
    return text, {"stop_reason": "compaction", "stop_sequence": None}


def _use(call: ChatCall) -> dict[str, Any] | None:
    """A call as a block; None = cut before the arguments were complete."""
    try:
        given = _arguments.decode(call.function.arguments or "{}")
    except UNREADABLE:
        return None
    return _use_block(call) | {"input": given}


def _use_block(call: ChatCall) -> dict[str, Any]:
    caller = {"type": "direct"}  # the model; typed clients refuse a block without it
    return {"type": "tool_use", "id": call.id or "", "name": call.function.name or "", "input": {}, "caller": caller}


def _thinking_block(thought: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": thought, "signature": ""}


def _head(answer: ChatCompletion) -> dict[str, Any]:
    message_id = f"msg_{answer.id.removeprefix('chatcmpl-')}"
    return {"id": message_id, "type": "message", "role": "assistant", "model": answer.model}


def _ending(choice: ChatChoice, usage: ChatUsage, max_tokens: int, *, has_calls: bool) -> dict[str, Any]:
    reason = _STOP_REASONS.get(choice.finish_reason or "", "end_turn")
    text = None
    if choice.finish_reason == "stop" and isinstance(choice.stop_reason, str):
        reason, text = "stop_sequence", choice.stop_reason
    elif choice.finish_reason == "stop" and has_calls:  # as a chat's answer ends whose tool was named
        reason = "tool_use"
    elif reason == "max_tokens" and (usage.completion_tokens or max_tokens) < max_tokens:
        reason = "model_context_window_exceeded"
    return {"stop_reason": reason, "stop_sequence": text}


def _usage(usage: ChatUsage) -> dict[str, int]:
    cached = usage.num_cached
    return {
        "input_tokens": max(0, usage.prompt_tokens - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens or 0,
    }


class _MessageStream:
    """Chunks of a chat → events of a message: one block after the other, each begun and ended."""

    def __init__(self) -> None:
        self.max_tokens = 0
        """Of the request."""
        self.is_summary = False
        """Whether it asks for a summary in place of an answer."""
        self._summary = ""
        self._has_begun = False
        self._num_blocks = 0
        self._open: str | int | None = None
        """Which block is open: `text`, `thinking` or the index of a call; None = none."""
        self._has_calls = False
        self._last = ChatChoice()
        """The choice's last chunk that ended it."""
        self._usage = _NOTHING

    def whole(self, answer: ChatCompletion) -> dict[str, Any]:
        """The message that is not streamed."""
        return _summary(answer, self.max_tokens) if self.is_summary else _message(answer, self.max_tokens)

    def events(self, payload: bytes) -> Iterator[Mapping[str, Any]]:
        if payload == DONE:
            yield from self._end()
            return
        try:
            chunk = completion.decode(payload)
        except UNREADABLE:
            return  # a comment of some server
        self._usage = chunk.usage or self._usage
        if not self._has_begun:
            self._has_begun = True
            message = _head(chunk) | {"content": [], "stop_reason": None, "stop_sequence": None}
            yield {"type": "message_start", "message": message | {"usage": _usage(self._usage)}}
        for choice in chunk.choices[:1]:
            if self.is_summary:
                self._summary += choice.delta.content or ""
            else:
                yield from self._said(choice.delta)
            if choice.finish_reason is not None:
                self._last = choice

    def _said(self, said: Said) -> Iterator[Mapping[str, Any]]:
        if said.thought:
            yield from self._more("thinking", _thinking_block(""), "thinking_delta", "thinking", said.thought)
        if said.content:
            yield from self._more("text", {"type": "text", "text": ""}, "text_delta", "text", said.content)
        for call in said.tool_calls or ():
            self._has_calls = True
            arguments = call.function.arguments or ""
            yield from self._more(call.index, _use_block(call), "input_json_delta", "partial_json", arguments)

    def _more(
        self, block: str | int, begun: Mapping[str, Any], kind: str, field: str, text: str
    ) -> Iterator[Mapping[str, Any]]:
        if block != self._open:
            yield from self._close()
            self._open = block
            yield {"type": "content_block_start", "index": self._num_blocks, "content_block": begun}
        if text:
            yield {"type": "content_block_delta", "index": self._num_blocks, "delta": {"type": kind, field: text}}

    def _close(self) -> Sequence[Mapping[str, Any]]:
        if self._open is None:
            return ()
        self._open, index = None, self._num_blocks
        self._num_blocks += 1
        return ({"type": "content_block_stop", "index": index},)

    def _end(self) -> Iterator[Mapping[str, Any]]:
        ending = _ending(self._last, self._usage, self.max_tokens, has_calls=self._has_calls)
        if self.is_summary:  # in one delta, as clients replace what was there before
            content, ending = _summarised(self._last, self._summary, self._usage, self.max_tokens)
            yield {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": None}}
            delta = {"type": "compaction_delta", "content": content}
            yield {"type": "content_block_delta", "index": 0, "delta": delta}
            yield {"type": "content_block_stop", "index": 0}
        yield from self._close()
        yield {"type": "message_delta", "delta": ending, "usage": _usage(self._usage)}
        yield {"type": "message_stop"}


def _event(told: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (told["type"].encode(), msgspec.json.encode(told))
