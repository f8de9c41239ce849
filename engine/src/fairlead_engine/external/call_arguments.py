"""Empty arguments (`""` or null) in calls of tools without parameters → `{}`, as OpenAI answers. Pure.

Clients read arguments as JSON and fail on an empty text. Arguments with text, and the arguments of an answer cut by
its length, stay as the server wrote them.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_HAS_CALLS = re.compile(rb'"tool_calls"\s*:\s*\[\s*\{')
"""Quotes in a model's text are escaped."""
_EVENT = re.compile(rb".*?\r?\n\r?\n", re.DOTALL)
_NOTHING = "{}"
_CUT = "length"
_HEAD = ("id", "object", "created", "model", "system_fingerprint")
"""Fields that all chunks of a stream share."""


def with_arguments(body: bytes) -> bytes:
    """A whole answer of a chat; another body as it is."""
    if not _HAS_CALLS.search(body):
        return body
    try:
        answer = msgspec.json.decode(body, type=dict[str, Any])
    except _UNREADABLE:
        return body
    changed = False
    for choice in _objects(answer.get("choices")):
        if choice.get("finish_reason") == _CUT:
            continue
        for function in map(_function, _calls(choice.get("message"))):
            if function is not None and not function.get("arguments"):
                function["arguments"], changed = _NOTHING, True
    return msgspec.json.encode(answer) if changed else body


class StreamedArguments:
    """Of one stream. A call ends when the next call of the same choice begins, or with the choice."""

    def __init__(self) -> None:
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
        return bool(self._bare) or _HAS_CALLS.search(events) is not None

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
                delta = {"tool_calls": [{"index": call, "function": {"arguments": _NOTHING}}]}
                added.append({"index": _index(choice), "delta": delta, "finish_reason": None})
        self._bare = {number: dict.fromkeys(calls) for number, calls in self._bare.items() if calls}
        head = {name: chunk[name] for name in _HEAD if name in chunk}
        told = [head | {"choices": [each]} for each in added] + ([chunk] if changed else [])
        return b"".join(b"data: %b\n\n" % msgspec.json.encode(each) for each in told) + (b"" if changed else event)

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
