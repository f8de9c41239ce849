"""Server-sent events on their way through, framed incrementally.

Used by the proxy for every streamed answer. Whole events pass the moment they are complete; JSON is parsed only for
events with usage. The result does not depend on how the network cut the bytes.
"""

import re
from typing import Annotated

import msgspec

from fairlead.gateway.openai.parse import UNREADABLE
from fairlead_common.http.client_connection import AnswerTooLarge

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""The longest event that is taken: a prompt that is echoed comes as one."""

LARGE_BYTES = 4 * 2**20
"""Parsing larger answers could take up to 2 ms a megabyte."""
USAGE_BYTES = 16 * 1024
_BOUNDARY = re.compile(rb"\r?\n\r?\n")
_BOUNDARY_OVERLAP = 3
"""Bytes of a boundary that one chunk may end with."""
_DONE = b"data: [DONE]"
_MARKS = (b'"usage"', b'"error"', _DONE)
"""Events without any of these marks pass unread."""
_EMPTY = (b'"delta":{}', b'"choices":[]')
"""What engines write in events without a token."""
_NULL_USAGE = re.compile(rb',\s*"usage"\s*:\s*null')
_ERROR_EVENT = re.compile(rb'data:\s*\{\s*"error"')
_NO_TOKEN_YET = re.compile(rb'"content"\s*:\s*(?:""|null)|"delta"\s*:\s*\{\s*(?:"role"\s*:\s*"assistant"\s*)?\}')


Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A token count told by an engine. Other numbers void the usage: counters only grow, and routing learns from answers'
lengths."""


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """OpenAI's `usage.prompt_tokens_details`."""

    cached_tokens: Count | None = None


class Usage(msgspec.Struct, frozen=True):
    """OpenAI's `usage`."""

    prompt_tokens: Count = 0
    completion_tokens: Count | None = 0
    prompt_tokens_details: PromptTokensDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache."""
        return (self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else 0) or 0


class _Error(msgspec.Struct):
    code: str | int | None = None
    type: str | None = None


class _Failure(msgspec.Struct):
    error: _Error


class _Chunk(msgspec.Struct):
    usage: Usage | None = None
    choices: msgspec.Raw = msgspec.Raw(b"[]")
    """Still encoded: there may be millions."""

    @property
    def has_choices(self) -> bool:
        return bytes(memoryview(self.choices)[:64]).translate(None, b" \t\r\n") not in (b"[]", b"null")


_CLIENTS_FAULT = "invalid_request_error"
_REFUSAL_STATUS = re.compile(r"[45]\d\d")
_failure_decoder = msgspec.json.Decoder(_Failure)
_chunk_decoder = msgspec.json.Decoder(_Chunk)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class UsageFilter:
    """Passes a stream of events on, keeps its usage, and hides usage unless the client asked for it."""

    def __init__(self, *, hide_usage: bool) -> None:
        self.hide_usage = hide_usage
        self.usage: Usage | None = None
        """The last usage seen."""
        self.done = False
        """Whether the stream has announced its end."""
        self.failed = False
        """Whether the engine has sent an error as an event."""
        self.error = b""
        """The error, as JSON."""
        self.error_code: str | None = None
        """`code` of the error."""
        self.blames_client = False
        """Whether the error blames the request."""
        self.token_seen = False
        """Whether an event with a token has passed: the first one marks TTFT."""
        self.num_tokens = 0
        """Events with tokens that passed; an engine may send several tokens in one event."""
        self._tail = bytearray()
        """The event that has begun."""

    @property
    def error_status(self) -> int | None:
        """The HTTP status in that error, as vLLM tells it; None = it tells none."""
        code = self.error_code or ""
        return int(code) if _REFUSAL_STATUS.fullmatch(code) else None

    def feed(self, data: bytes) -> bytes:
        """Whole events for the client, perhaps none."""
        if not self._tail and self.token_seen and data.endswith(b"\n\n"):
            bare = _NULL_USAGE.sub(b"", data) if b'"usage"' in data else data
            if not any(mark in bare for mark in _MARKS):
                self.num_tokens += _num_tokens(data)
                return bare if self.hide_usage else data
        passed, start = [], 0
        if self._tail and not _BOUNDARY.search(self._tail[-_BOUNDARY_OVERLAP:] + data):
            self._tail += data  # an event that comes in many pieces is not copied with each of them
        else:
            buffer = bytes(self._tail) + data
            for boundary in _BOUNDARY.finditer(buffer, max(0, len(self._tail) - _BOUNDARY_OVERLAP)):
                passed.append(self._pass(buffer[start : boundary.end()]))
                start = boundary.end()
            self._tail = bytearray(buffer[start:])
        if len(self._tail) > MAX_EVENT_BYTES:
            raise AnswerTooLarge(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return b"".join(passed)

    def _pass(self, event: bytes) -> bytes:
        """What the client gets of one whole event."""
        if self.failed:
            return b""  # vLLM says `[DONE]` behind an error, which would look like a whole answer
        if event.startswith(_DONE):
            self.done = True
            return event
        if _ERROR_EVENT.match(event):
            self.failed, self.error = True, _payload(event)
            told = _error_of(self.error)
            self.error_code = error_code_of(self.error)
            self.blames_client = told.type == _CLIENTS_FAULT or (self.error_status or 500) < 500
            return event
        if b'"usage"' in event:
            event = self._without_usage(event)
        if event.startswith(b"data:"):
            self.token_seen = self.token_seen or _NO_TOKEN_YET.search(event) is None
            if self.token_seen:
                self.num_tokens += _num_tokens(event)
        return event

    def _without_usage(self, event: bytes) -> bytes:
        """Keeps the usage of an event; returns the client's event, empty where the event carried nothing but usage."""
        if self.hide_usage:
            event = _NULL_USAGE.sub(b"", event)
        if b'"usage"' not in event:
            return event
        try:
            chunk = _chunk_decoder.decode(_payload(event))
        except UNREADABLE:
            return event
        if chunk.usage is None:
            return event
        self.usage = chunk.usage
        if not self.hide_usage:
            return event
        if not chunk.has_choices:
            return b""
        fields = _fields_decoder.decode(_payload(event))
        del fields["usage"]
        return b"data: " + msgspec.json.encode(fields) + b"\n\n"


def _num_tokens(events: bytes) -> int:
    """How many of the events carry tokens. JSON is not parsed, since most bytes of streams come here."""
    num_events = events.startswith(b"data:") + events.count(b"\ndata:")
    return max(0, num_events - sum(events.count(mark) for mark in _EMPTY))


def usage_of(body: bytes) -> Usage | None:
    """The usage in a JSON answer; None = none. Only the end of a large answer is read, where engines write usage."""
    if len(body) > LARGE_BYTES:
        start = body.rfind(b'"usage"', len(body) - USAGE_BYTES)
        body = b"{" + body[start:] if start >= 0 else b""
    try:
        return _chunk_decoder.decode(body).usage
    except UNREADABLE:
        return None


def error_code_of(body: bytes) -> str | None:
    """The `code` of an error in OpenAI's shape; None when it has none, or is none."""
    code = _error_of(body).code
    return None if code is None else str(code)


def _error_of(body: bytes) -> _Error:
    try:
        return _failure_decoder.decode(body).error
    except UNREADABLE:
        return _Error()


def _payload(event: bytes) -> bytes:
    """The data of an event: its data lines joined, as the standard says."""
    lines = (line for line in event.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
