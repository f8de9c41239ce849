"""Answers of chats, as engines write them: whole, and as events of a stream. What other dialects are made of. Pure."""

import re
from collections.abc import Iterator

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
DONE = b"[DONE]"
EVENT_STREAM = "text/event-stream; charset=utf-8"
"""Content type of server-sent events."""
_EVENT_END = re.compile(rb"\r?\n\r?\n")


class Function(msgspec.Struct, frozen=True):
    """Whose name and arguments a call has, or more of its arguments."""

    name: str | None = None
    arguments: str | None = None


class ChatCall(msgspec.Struct, frozen=True):
    """A call of a tool, or in a stream more of one."""

    function: Function
    id: str | None = None
    index: int = 0


class Said(msgspec.Struct, frozen=True):
    """A chat's message, or what a chunk adds to one."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """Its newer name at vLLM."""
    tool_calls: list[ChatCall] | None = None

    @property
    def thought(self) -> str:
        return self.reasoning_content or self.reasoning or ""


class ChoiceLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of tokens, still encoded: there may be many times as many numbers as tokens."""

    content: msgspec.Raw = msgspec.Raw(b"null")


class ChatChoice(msgspec.Struct, frozen=True):
    """An answer, or what a chunk adds to one."""

    message: Said = Said()
    delta: Said = Said()
    text: str = ""
    """Of a text completion, whole or more of it."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: ChoiceLogprobs | None = None


class Details(msgspec.Struct, frozen=True):
    """Parts of a count of tokens."""

    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class ChatUsage(msgspec.Struct, frozen=True):
    """How many tokens were read and written."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None

    @property
    def num_cached(self) -> int:
        return (self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else 0) or 0

    @property
    def num_reasoning(self) -> int:
        return (self.completion_tokens_details.reasoning_tokens if self.completion_tokens_details else 0) or 0


class ChatCompletion(msgspec.Struct, frozen=True):
    """A chat's answer, or a chunk of its stream."""

    choices: list[ChatChoice]
    id: str = ""
    model: str = ""
    usage: ChatUsage | None = None


completion: msgspec.json.Decoder[ChatCompletion] = msgspec.json.Decoder(ChatCompletion)
"""Of a whole answer, and of each chunk of a stream."""


def payloads(data: bytes) -> Iterator[bytes]:
    """The data of each of some whole events."""
    for event in _EVENT_END.split(data):
        lines = (line for line in event.splitlines() if line.startswith(b"data:"))
        if payload := b"\n".join(line[5:].strip() for line in lines):
            yield payload


def is_error(payload: bytes) -> bool:
    """Whether an event tells of an error, in OpenAI's shape."""
    return payload.startswith(b'{"error"')
