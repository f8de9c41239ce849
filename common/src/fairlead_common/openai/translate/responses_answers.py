"""Answers of chats → OpenAI's responses, whole and as numbered events. Pure."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from fairlead_common.openai.tool_forms import input_of
from fairlead_common.openai.translate.chat_answers import (
    DONE,
    EVENT_STREAM,
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
from fairlead_common.openai.translate.decoding import Places
from fairlead_common.openai.translate.messages import tokens_reply
from fairlead_common.openai.translate.responses import (
    SEARCH,
    Kept,
    ResponsesRequest,
    chat_fields_of,
    decoded_response,
)
from fairlead_common.openai.translate.summaries import NO_SUMMARY, sealed
from fairlead_common.openai.unknown_fields import UnknownFields

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""`finish_reason` → why a response is incomplete."""
_ECHOED = (
    "instructions", "max_output_tokens", "max_tool_calls", "metadata", "prompt_cache_key", "safety_identifier",
    "temperature", "top_logprobs", "top_p", "truncation", "user",
)  # fmt: skip
"""Fields of a request that its response repeats."""
_COUNTED = ("model", "messages", "tools", "chat_template_kwargs", "reasoning_effort")
"""Fields of a chat that change its prompt."""
_NONE = msgspec.Raw(b"[]")
_COMPACTING = "response.compaction.compacting"
_UNSUMMARISED = {"status": "failed", "error": {"code": "server_error", "message": NO_SUMMARY}}


def unserved(problem: str) -> tuple[int, bytes]:
    """Status and body where the answer that came is of no use."""
    return 502, msgspec.json.encode(
        {"error": {"message": problem, "type": "server_error", "param": None, "code": None}}
    )


class Responses:
    """A request to `/v1/responses` as a chat."""

    stream_type = EVENT_STREAM

    def __init__(self, kept: Kept | None = None) -> None:
        """`kept`: None = the response is not stored."""
        self._kept = kept
        self._places = Places()
        self._stream: _ResponseStream | None = None
        self._request = ResponsesRequest(input="")
        self._whole: dict[str, Any] | None = None

    def begun(self) -> dict[str, Any]:
        """The response before anything of it is written."""
        answer = ChatCompletion(choices=[], model=self._request.model or "")
        return _head(self._request, self._kept, answer)

    @property
    def ended(self) -> dict[str, Any] | None:
        """The response, once it has ended; None before, and where it was refused."""
        return self._stream.ended if self._whole is None and self._stream else self._whole

    def request(self, body: bytes, unknown: UnknownFields) -> tuple[str, bytes]:
        self._request = self.asked(body, unknown)
        fields, self._places = chat_fields_of(self._request, self._kept)
        if self._request.stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        self._stream = _ResponseStream(self._request, self._kept)
        return "/v1/chat/completions", msgspec.json.encode(fields)

    def asked(self, body: bytes, unknown: UnknownFields) -> ResponsesRequest:
        """The request in a body. Raises PromptError and OverBudget."""
        return decoded_response(body, unknown, self._kept)

    def answer(self, status: int, body: bytes, request_id: str) -> tuple[int, bytes]:
        if status >= 400:
            return status, self._refusal(body)
        try:
            answer = completion.decode(body)
        except UNREADABLE:
            return unserved("What serves this model does not answer chats.")
        return self._answered(status, answer)

    def _answered(self, status: int, answer: ChatCompletion) -> tuple[int, bytes]:
        """Status and body of an answer that is no refusal."""
        self._whole = _whole(self._request, self._kept, answer)
        return status, msgspec.json.encode(self._whole)

    def events(self, data: bytes) -> bytes:
        """Events of a response for whole events of a chat, perhaps none."""
        stream = self._stream or _ResponseStream(self._request, self._kept)
        return b"".join(encoded_event(event) for payload in payloads(data) for event in stream.events(payload))

    def _refusal(self, body: bytes) -> bytes:
        """The same, with places in the request; what is no JSON stays as it is."""
        return self._places.told(body.decode(errors="surrogateescape")).encode(errors="surrogateescape")


class ResponseInputTokens(msgspec.Struct, frozen=True, tag_field="object", tag="response.input_tokens"):
    """Reply of `/v1/responses/input_tokens`."""

    input_tokens: int


class CountInputTokens(Responses):
    """A request to `/v1/responses/input_tokens` as a request to `/tokenize`."""

    def request(self, body: bytes, unknown: UnknownFields) -> tuple[str, bytes]:
        fields, self._places = chat_fields_of(decoded_response(body, unknown))
        return "/tokenize", msgspec.json.encode({name: fields[name] for name in _COUNTED if name in fields})

    def answer(self, status: int, body: bytes, request_id: str) -> tuple[int, bytes]:
        if status >= 400:
            return status, self._refusal(body)
        try:
            return status, msgspec.json.encode(ResponseInputTokens(tokens_reply.decode(body).count))
        except UNREADABLE:
            return unserved("What serves this model does not count the tokens of chats.")


# -- Whole -------------------------------------------------------------------------------------------------------------


def _whole(request: ResponsesRequest, kept: Kept | None, answer: ChatCompletion) -> dict[str, Any]:
    choice = answer.choices[0] if answer.choices else ChatChoice()
    said, status = choice.message, _status(choice)
    items = []
    for kind, text in _parts(request, said):
        items.append(item := _Item.of(kind, answer.id, request))
        item.text = text
        item.logprobs = _logprobs(choice)
    output = [item.whole(status if item is items[-1] else "completed") for item in items]
    head = _head(request, kept, answer) | {"output": output, "usage": usage_of(answer.usage)}
    return head | (ending_of(choice) if output or not request.asks_for_summary else _UNSUMMARISED)


def _parts(request: ResponsesRequest, said: Said, *, is_first: bool = True) -> "Iterator[tuple[str | ChatCall, str]]":
    """Kinds and texts of what was said; of a compaction the summary alone, which does not begin with a text of spaces.
    `is_first`: whether no item is open."""
    if request.asks_for_summary:
        if said.content and not (is_first and said.content.isspace()):
            yield "compaction", said.content
        return
    if said.thought:
        yield "reasoning", said.thought
    if said.content:
        yield "message", said.content
    yield from ((call, call.function.arguments or "") for call in said.tool_calls or ())


def _head(request: ResponsesRequest, kept: Kept | None, answer: ChatCompletion) -> dict[str, Any]:
    """A response of which nothing is written yet. `kept`: None = it is not stored."""
    given: dict[str, Any] = {name: getattr(request, name) for name in _ECHOED}
    return given | {
        "id": f"resp_{answer.id.removeprefix('chatcmpl-')}" if kept is None else kept.id,
        "object": "response",
        "created_at": int(time.time()),
        "model": answer.model,
        "status": "in_progress",
        "background": bool(request.background),
        "error": None,
        "incomplete_details": None,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": (request.reasoning or {}).get("effort"), "summary": None},
        "service_tier": "default",
        "store": kept is not None and kept.is_stored,
        "text": {"format": {"type": "text"}} | (request.text or {}),
        "tool_choice": request.tool_choice or "auto",
        "tools": request.tools or [],
        "usage": None,
    }


def _status(choice: ChatChoice) -> str:
    return "incomplete" if choice.finish_reason in _INCOMPLETE else "completed"


def ending_of(choice: ChatChoice) -> dict[str, Any]:
    reason = _INCOMPLETE.get(choice.finish_reason or "")
    details = None if reason is None else {"reason": reason}
    ended = {"completed_at": int(time.time())} if reason is None else {}
    return {"status": _status(choice), "incomplete_details": details, **ended}


def usage_of(usage: ChatUsage | None) -> dict[str, Any] | None:
    """As a response tells it. None = unknown."""
    if usage is None:
        return None
    written = usage.completion_tokens or 0
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.num_cached, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": usage.num_reasoning},
        "total_tokens": usage.prompt_tokens + written,
    }


def _logprobs(choice: ChatChoice) -> msgspec.Raw:
    """A list."""
    return _NONE if choice.logprobs is None or bytes(choice.logprobs.content) == b"null" else choice.logprobs.content


class _Item:
    """One item of a response in the making: reasoning, a message, or a call. `delta_kind` and `done_kind` name the
    events of its text."""

    kind = ""
    delta_kind = ""
    """Empty = no events tell its text."""
    field = "text"
    """Name of its text."""
    part_kind: str | None = None
    """`type` of its one part; None = it has no parts."""

    def __init__(self, item_id: str) -> None:
        self.id = item_id
        self.text = ""
        self.logprobs = _NONE

    @staticmethod
    def of(kind: "str | ChatCall", response_id: str, request: ResponsesRequest) -> "_Item":
        """`kind`: `reasoning`, `message` or `compaction`, or the call."""
        suffix = response_id.removeprefix("chatcmpl-")
        if kind == "reasoning":
            return _Reasoning(f"rs_{suffix}")
        if kind == "message":
            return _Message(f"msg_{suffix}")
        if kind == "compaction":
            return Compaction(f"cmp_{suffix}")
        assert isinstance(kind, ChatCall)
        names, type_of_tool = request.tool(kind.function.name)
        return {"custom": _CustomCall, SEARCH: _SearchCall}.get(type_of_tool, _FunctionCall)(kind, names)

    @classmethod
    def done_kind(cls) -> str:
        return cls.delta_kind.removesuffix("delta") + "done"

    def whole(self, status: str) -> dict[str, Any]:
        return {"type": self.kind, "id": self.id, "status": status} | self.fields()

    def fields(self) -> dict[str, Any]:
        """Those of its own."""
        raise NotImplementedError

    def part(self) -> dict[str, Any]:
        return {"type": self.part_kind, "text": self.text}

    def told(self) -> str:
        """The text that its last event repeats."""
        return self.text

    def more(self, text: str) -> str:
        """What its next event says of more text; empty = nothing yet."""
        self.text += text
        return text


class _Reasoning(_Item):
    kind, delta_kind, part_kind = "reasoning", "response.reasoning_text.delta", "reasoning_text"

    def fields(self) -> dict[str, Any]:
        return {"summary": [], "content": [self.part()] if self.text else [], "encrypted_content": None}


class _Message(_Item):
    kind, delta_kind, part_kind = "message", "response.output_text.delta", "output_text"

    def fields(self) -> dict[str, Any]:
        return {"role": "assistant", "content": [self.part()] if self.text else []}

    def part(self) -> dict[str, Any]:
        return super().part() | {"annotations": [], "logprobs": self.logprobs}


class Compaction(_Item):
    """The summary is inside of an opaque text, and told when it is whole."""

    kind, field = "compaction", "encrypted_content"

    def whole(self, status: str) -> dict[str, Any]:
        return {"type": self.kind, "id": self.id, self.field: sealed(self.text) if self.text else ""}

    def more(self, text: str) -> str:
        super().more(text)
        return ""


class _FunctionCall(_Item):
    kind, delta_kind = "function_call", "response.function_call_arguments.delta"
    field = "arguments"

    def __init__(self, call: ChatCall, names: Mapping[str, str]) -> None:
        """`names`: `name` and perhaps `namespace` of the tool."""
        super().__init__(f"fc_{call.id}")
        self.call_id, self.names = call.id or "", names

    def fields(self) -> dict[str, Any]:
        return {"call_id": self.call_id, **self.names, self.field: self.told()}


class _CustomCall(_FunctionCall):
    """The text is inside of arguments, and told when these are whole."""

    kind, delta_kind, field = "custom_tool_call", "response.custom_tool_call_input.delta", "input"

    def told(self) -> str:
        return input_of(self.text)

    def more(self, text: str) -> str:
        super().more(text)
        return ""


class _SearchCall(_FunctionCall):
    """A search for tools by the client. The arguments are an object, and told whole."""

    kind, delta_kind = "tool_search_call", ""

    def fields(self) -> dict[str, Any]:
        try:
            arguments = msgspec.json.decode(self.text or "{}")
        except UNREADABLE:
            arguments = self.text
        return {"call_id": self.call_id, "execution": "client", self.field: arguments}

    def more(self, text: str) -> str:
        super().more(text)
        return ""


# -- Streams -----------------------------------------------------------------------------------------------------------


class _ResponseStream:
    """Chunks of a chat → events of a response, numbered: one item after the other, each added and done. Events that
    repeat a text leave out its log-probabilities, which would be held for the whole answer."""

    def __init__(self, request: ResponsesRequest, kept: Kept | None) -> None:
        self._request = request
        self._kept = kept
        self.ended: dict[str, Any] | None = None
        self._head: dict[str, Any] = {}
        """The response as it began; empty before the first chunk."""
        self._answer = ChatCompletion(choices=[])
        self._number = 0
        self._output: list[dict[str, Any]] = []
        self._open: _Item | None = None
        self._of: str | int | None = None
        """Which item is open: its kind, or the index of a call."""
        self._last = ChatChoice()
        self._usage: ChatUsage | None = None

    def events(self, payload: bytes) -> Iterator[dict[str, Any]]:
        """Raises nothing."""
        for event in self._events(payload):
            yield event | {"sequence_number": self._number}
            self._number += 1

    def _events(self, payload: bytes) -> Iterator[dict[str, Any]]:
        if self.ended is not None:
            return  # nothing comes behind an error, be it another server's end
        if is_error(payload):
            yield self._failed(payload)
            return
        if payload == DONE:
            yield from self._end()
            return
        try:
            chunk = completion.decode(payload)
        except UNREADABLE:
            return  # a comment of some server
        self._usage = chunk.usage or self._usage
        if not self._head:
            self._answer, self._head = chunk, _head(self._request, self._kept, chunk)
            yield {"type": "response.created", "response": self._head}
            yield {"type": "response.in_progress", "response": self._head}
        for choice in chunk.choices[:1]:
            yield from self._said(choice)
            if choice.finish_reason is not None:
                self._last = choice

    def _said(self, choice: ChatChoice) -> Iterator[dict[str, Any]]:
        for kind, text in _parts(self._request, choice.delta, is_first=self._open is None):
            logprobs = _logprobs(choice) if kind == "message" else _NONE
            yield from self._more(kind if isinstance(kind, str) else kind.index, kind, text, logprobs)

    def _more(
        self, of: str | int, kind: "str | ChatCall", text: str, logprobs: msgspec.Raw
    ) -> Iterator[dict[str, Any]]:
        if of != self._of or self._open is None:
            yield from self._close("completed")
            self._of, self._open = of, _Item.of(kind, f"{self._answer.id}_{len(self._output)}", self._request)
            yield self._at("response.output_item.added", item=self._open.whole("in_progress"))
            if isinstance(self._open, Compaction):
                yield self._at(_COMPACTING, item_id=self._open.id)
            if self._open.part_kind is not None:
                yield self._part("response.content_part.added")
        if told := self._open.more(text):
            yield self._text(self._open.delta_kind, "delta", told, logprobs)

    def _close(self, status: str) -> Iterator[dict[str, Any]]:
        item = self._open
        if item is None:
            return
        if isinstance(item, _CustomCall) and item.told():
            yield self._text(item.delta_kind, "delta", item.told(), _NONE)
        if item.delta_kind:
            yield self._text(item.done_kind(), item.field, item.told(), item.logprobs)
        if item.part_kind is not None:
            yield self._part("response.content_part.done")
        whole = item.whole(status)
        yield self._at("response.output_item.done", item=whole)
        self._output.append(whole)
        self._open = None

    def _end(self) -> Iterator[dict[str, Any]]:
        yield from self._close(_status(self._last))
        is_empty = self._request.asks_for_summary and not self._output
        ending = _UNSUMMARISED if is_empty else ending_of(self._last)
        self.ended = self._head | ending | {"output": self._output, "usage": usage_of(self._usage)}
        yield {"type": f"response.{ending['status']}", "response": self.ended}

    def _failed(self, payload: bytes) -> dict[str, Any]:
        try:
            error = msgspec.json.decode(payload, type=dict[str, dict[str, Any]])["error"]
        except UNREADABLE:
            error = {}
        told = {"code": "server_error", "message": str(error.get("message") or "The answer broke off.")}
        head = self._head or _head(self._request, self._kept, self._answer)
        self.ended = head | {"status": "failed", "error": told}
        return {"type": "response.failed", "response": self.ended}

    def _text(self, kind: str, field: str, text: str, logprobs: msgspec.Raw) -> dict[str, Any]:
        assert self._open is not None
        more: dict[str, Any] = {} if self._open.part_kind is None else {"content_index": 0}
        if isinstance(self._open, _Message):
            more["logprobs"] = logprobs
        if kind == "response.function_call_arguments.done" and isinstance(self._open, _FunctionCall):
            more["name"] = self._open.names["name"]
        return self._at(kind, item_id=self._open.id, **{field: text}, **more)

    def _part(self, kind: str) -> dict[str, Any]:
        assert self._open is not None
        return self._at(kind, item_id=self._open.id, content_index=0, part=self._open.part())

    def _at(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": kind, "output_index": len(self._output), **fields}


# -- Stored ------------------------------------------------------------------------------------------------------------


def replayed(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Events of a stored response that has ended, as those of a stream whose items come whole."""
    empty: dict[str, Any] = {
        "status": "in_progress",
        "output": [],
        "usage": None,
        "error": None,
        "incomplete_details": None,
    }
    head = response | empty
    head.pop("completed_at", None)
    events: list[dict[str, Any]] = [
        {"type": f"response.{name}", "response": head} for name in ("created", "in_progress")
    ]
    for index, item in enumerate(response["output"]):
        events += ({**event, "output_index": index} for event in _item_events(item))
    ended = response["status"] if response["status"] in ("completed", "failed") else "incomplete"
    events.append({"type": f"response.{ended}", "response": response})
    return ({**event, "sequence_number": number} for number, event in enumerate(events))


def _item_events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kinds: Sequence[type[_Item]] = (_Reasoning, _Message, Compaction, _FunctionCall, _CustomCall, _SearchCall)
    made = next(kind for kind in kinds if kind.kind == item["type"])
    part: dict[str, Any] = next(iter(item.get("content") or ()), {})
    told = (part or item).get(made.field, "")
    of = {"item_id": item["id"]} | ({"content_index": 0} if part else {})
    more = {"logprobs": part.get("logprobs", [])} if made is _Message else {}
    name = {"name": item["name"]} if made is _FunctionCall else {}
    begun: dict[str, Any] = {"content": []} if made.part_kind else {made.field: ""}
    if not made.delta_kind:
        begun = begun if made is Compaction else {"status": "in_progress", made.field: {}}
        yield {"type": "response.output_item.added", "item": item | begun}
        if made is Compaction:
            yield {"type": _COMPACTING, **of}
        yield {"type": "response.output_item.done", "item": item}
        return
    yield {"type": "response.output_item.added", "item": item | {"status": "in_progress"} | begun}
    if part:
        yield {"type": "response.content_part.added", "part": part | {"text": ""}, **of}
    if told:
        yield {"type": made.delta_kind, "delta": told, **of, **more}
    if told or not made.part_kind:
        yield {"type": made.done_kind(), made.field: told, **of, **more, **name}
    if part:
        yield {"type": "response.content_part.done", "part": part, **of}
    yield {"type": "response.output_item.done", "item": item}


def encoded_event(event: Mapping[str, Any]) -> bytes:
    """As a stream carries it."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))
