"""Tools and calls of chats between OpenAI's clients and other servers, which know functions alone. Pure.

Requests: custom tools, the older `functions`, and `allowed_tools` become functions. Answers: their calls get those
forms again, and empty arguments (`""` or null) in calls of tools without parameters become `{}`: clients read arguments
as JSON and fail on an empty text. Arguments with text, and the arguments of an answer cut by its length, stay as the
server wrote them.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from fairlead_common.openai.tool_forms import CallForms, as_function, as_functions, with_function_calls

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_HAS_CALLS = re.compile(rb'"tool_calls"\s*:\s*\[\s*\{')
"""Quotes in a model's text are escaped."""
_EVENT = re.compile(rb".*?\r?\n\r?\n", re.DOTALL)
_NOTHING = "{}"
_CUT = "length"
_HEAD = ("id", "object", "created", "model", "system_fingerprint")
"""Fields that all chunks of a stream share."""

_OTHER_FORM = re.compile(rb'"(?:custom|function_call)"')
"""Of a call in a history."""
Fields = dict[str, msgspec.Raw]


def as_server_takes(fields: Fields) -> tuple[Fields, CallForms]:
    """The fields of a request with functions alone, and the forms of the answer's calls. Without what says
    nothing, an empty list of tools, a choice without tools and a limit of -1, which vLLM refuses. What cannot be read
    stays: it refuses that."""
    try:
        tools, functions = (_decoded(fields, name, list[Any]) for name in ("tools", "functions"))
        choice = _decoded(fields, "tool_choice" if functions is None else "function_call", Any)
        told = {"tools": as_functions(tools, functions) or None, "tool_choice": _named(choice)}
        if told["tools"] is None and choice in ("auto", "none"):
            told["tool_choice"] = None
        elif told["tools"] and isinstance(choice, dict) and "allowed_tools" in choice:
            told |= _allowed(told["tools"], choice["allowed_tools"])
        if "messages" in fields and _OTHER_FORM.search(fields["messages"]):
            told["messages"] = with_function_calls(_decoded(fields, "messages", list[dict[str, Any]]) or [])
    except (AttributeError, KeyError, TypeError, *_UNREADABLE):
        return fields, CallForms(None, None)
    if functions is not None:
        told["parallel_tool_calls"] = False  # the older form has one call
    sent = {"tools": tools, "tool_choice": choice if functions is None else None}
    changed = {name: value for name, value in told.items() if name not in sent or sent[name] != value}
    left_out = {*changed, *(("functions", "function_call") if functions is not None else ())}
    limits = ("max_tokens", "max_completion_tokens") if "messages" in fields else ()  # a completion's default is 16
    left_out.update(name for name in limits if bytes(fields.get(name, b"")).strip() == b"-1")
    kept = {name: value for name, value in fields.items() if name not in left_out}
    kept |= {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in changed.items() if value is not None}
    return kept, CallForms(tools, functions)


def _decoded(fields: Fields, name: str, kind: Any) -> Any:
    return None if name not in fields else msgspec.json.decode(fields[name], type=kind | None)


def _named(choice: Any) -> Any:
    """A choice of a custom tool, in the form of Responses, or `function_call`, as a choice of a function."""
    named = choice if not isinstance(choice, dict) or "name" in choice else choice.get("custom")
    return {"type": "function", "function": {"name": named.get("name")}} if isinstance(named, dict) else choice


def _allowed(tools: list[Any], allowed: Any) -> dict[str, Any]:
    """The allowed tools alone, and the mode of their choice. Raises TypeError and KeyError."""
    names = [as_function(tool)["function"]["name"] for tool in allowed["tools"]]
    kept = [tool for tool in tools if tool["function"]["name"] in names]
    return {"tools": kept, "tool_choice": allowed["mode"]} if kept else {}


def with_calls(body: bytes, forms: CallForms) -> bytes:
    """A whole answer of a chat; another body as it is."""
    if not _HAS_CALLS.search(body):
        return body
    try:
        answer = msgspec.json.decode(body, type=dict[str, Any])
    except _UNREADABLE:
        return body
    changed = not forms.are_plain
    for choice in _objects(answer.get("choices")):
        for function in map(_function, _calls(choice.get("message"))):
            if function is not None and not function.get("arguments") and choice.get("finish_reason") != _CUT:
                function["arguments"], changed = _NOTHING, True
        message: Any = choice.get("message")
        if not forms.are_plain and (calls := _calls(message)):
            del message["tool_calls"]
            message |= forms.whole(calls)
            choice["finish_reason"] = forms.reason(choice.get("finish_reason"))
    return msgspec.json.encode(answer) if changed else body


class StreamedCalls:
    """Of one stream. A call ends when the next call of the same choice begins, or with the choice."""

    def __init__(self, forms: CallForms) -> None:
        self._forms = forms
        self._bare: dict[int, dict[int, dict[str, Any] | None]] = {}
        """By choice, the calls without arguments so far, each with its function if the present event holds one."""
        self._begun: set[tuple[int, int]] = set()

    def feed(self, events: bytes) -> bytes:
        """Some whole events, with added events that complete calls."""
        if not self._concerns(events):
            return events
        end = 0
        told = bytearray()
        for found in _EVENT.finditer(events):
            told += self._event(found[0]) if self._concerns(found[0]) else found[0]
            end = found.end()
        return bytes(told) + events[end:]

    def _concerns(self, events: bytes) -> bool:
        return bool(self._bare) or not self._forms.are_plain or _HAS_CALLS.search(events) is not None

    def _event(self, event: bytes) -> bytes:
        payload = b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
        try:
            chunk = msgspec.json.decode(payload, type=dict[str, Any])
        except _UNREADABLE:
            return event  # [DONE], or a comment
        added, changed = [], False
        for choice in _objects(chunk.get("choices")):
            for call, function in self._over(choice):
                if function is not None:
                    function["arguments"], changed = _NOTHING, True
                    continue
                delta = self._forms.added(_index(choice), [{"index": call, "function": {"arguments": _NOTHING}}])
                added.append({"index": _index(choice), "delta": delta, "finish_reason": None})
            if not self._forms.are_plain:
                added += self._reformed(choice)
                changed = True
        self._bare = {number: dict.fromkeys(calls) for number, calls in self._bare.items() if calls}
        head = {name: chunk[name] for name in _HEAD if name in chunk}
        told = [head | {"choices": [each]} for each in added] + ([chunk] if changed else [])
        return b"".join(b"data: %b\n\n" % msgspec.json.encode(each) for each in told) + (b"" if changed else event)

    def _reformed(self, choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Gives the calls of a chunk's choice their forms; choices to tell before."""
        delta: Any = choice.get("delta")
        index = _index(choice)
        if calls := _calls(delta):
            del delta["tool_calls"]
            delta |= self._forms.added(index, calls)
        if choice.get("finish_reason") is not None:
            choice["finish_reason"] = self._forms.reason(choice["finish_reason"])
            if rest := self._forms.rest(index):
                yield {"index": index, "delta": {"tool_calls": rest}, "finish_reason": None}

    def _over(self, choice: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Calls that end here without arguments: number, and the function if the present event holds the function."""
        number = _index(choice)
        bare = self._bare.setdefault(number, {})
        for entry in _calls(choice.get("delta")):
            call, function = _index(entry), _function(entry)
            yield from [(other, bare.pop(other)) for other in list(bare) if other != call]
            if function is None:
                continue
            if function.get("arguments"):
                bare.pop(call, None)
            elif call in bare or (number, call) not in self._begun:
                bare[call] = function
            self._begun.add((number, call))
        if (reason := choice.get("finish_reason")) is not None:
            if reason != _CUT:
                yield from bare.items()
            bare.clear()


def _calls(said: Any) -> list[dict[str, Any]]:
    return _objects(said.get("tool_calls")) if isinstance(said, dict) else []


def _index(part: dict[str, Any]) -> int:
    index = part.get("index")
    return index if isinstance(index, int) else 0


def _function(call: dict[str, Any]) -> dict[str, Any] | None:
    function = call.get("function")
    return function if isinstance(function, dict) else None


def _objects(values: Any) -> list[dict[str, Any]]:
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []
