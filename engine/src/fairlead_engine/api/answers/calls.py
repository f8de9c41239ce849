"""Calls that are written as JSON objects: `{"name": …, "arguments": {…}}`."""

import ast
import json
import re
from collections.abc import Collection
from enum import Enum, auto
from typing import Any, TypeGuard

from fairlead_engine.api.answers.answer_text import (
    AnswerSource,
    CallArguments,
    CallBegun,
    CallCut,
    CallEnded,
    Content,
    Reading,
    ahead,
    json_text,
    json_value,
    python_value,
    space,
)

NO_ARGUMENTS = "{}"
"""Arguments of a complete call without any."""
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,256}")
_ARGUMENTS = ("arguments", "parameters")
_BETWEEN, _BRACKETS = (",", ";"), ("}", "]")
_NAMES = ("name", "tool_name", "function")
_KEYS = (*_NAMES, *_ARGUMENTS, "type", "id")
_LAST_TEXT = re.compile(r'("(?:name|tool_name|function)"\s*:\s*|[{,]\s*)"([^"]*)$')
"""The name, or the key, at the end of an object's text."""


class Found(Enum):
    """Result of reading at a possible call."""

    CALL = auto()
    CUT = auto()
    """An incomplete name at the answer's end, read completely."""
    OTHER = auto()
    """Another text, left unread."""


def is_name(text: str) -> bool:
    """Whether a function can have this name."""
    return _NAME.fullmatch(text) is not None


def call_object(source: AnswerSource, names: Collection[str] | None = None) -> Reading[Found]:
    """Reads a call's object with fields in any order. `names`: the known functions; None = any name. A call ends where
    no object could continue."""
    source.mark()
    first = yield from space(source)
    if not first:
        source.settle()
        return Found.CUT
    if first != "{":
        source.back()
        return Found.OTHER
    reader = _ObjectReader(source, names)
    yield from reader.read()
    if reader.name is not None:
        return Found.CALL
    is_cut = source.is_spent
    source.back()
    if not is_cut or reader.is_other or not reader.may_become_call(source.rest):
        return Found.OTHER
    if names is not None and not source.is_cut:  # no marker announces a call, and nothing cut one off
        return Found.OTHER
    return (yield from cut(source))


def first_call(source: AnswerSource, begin: str, call: Reading[Found]) -> Reading[Found]:
    """Reads a call that may begin a list. Without a call the marker `begin` is text."""
    source.mark()
    if (yield from space(source)) == "[":
        source.take(1)
        source.settle()
        begin += "["
    else:
        source.back()
    found = yield from call
    if found is Found.OTHER:
        yield Content(begin)
    return found


def call_objects(source: AnswerSource, begin: str) -> Reading[Found]:
    """Reads objects behind the marker `begin`, as a list or a sequence. Without an object the marker is text."""
    found = first = yield from first_call(source, begin, call_object(source))
    while found is Found.CALL:
        if (yield from space(source)) in _BETWEEN:
            source.take(1)
        found = yield from call_object(source)
    while first is Found.CALL and (yield from space(source)) in _BRACKETS:
        source.take(1)
    return first


def cut(source: AnswerSource) -> Reading[Found]:
    """Drops an incomplete call at the end of the answer."""
    source.take(len(source.rest))
    yield CallCut()
    return Found.CUT


def ended(arguments: str, *, is_over: bool) -> Reading[None]:
    """Reports a complete call. `is_over`: whether the call's end follows its `arguments`."""
    if arguments.strip():
        try:
            json.loads(arguments)
        except (ValueError, RecursionError):
            return
    elif not is_over:
        return
    else:
        yield CallArguments(NO_ARGUMENTS)
    yield CallEnded()


class _ObjectReader:
    def __init__(self, source: AnswerSource, names: Collection[str] | None) -> None:
        self.name: str | None = None
        self.is_other = False
        """Whether the object's name is complete, and that of no function."""
        self._source = source
        self._names = names
        self._keys: list[str] = []
        self._arguments: str | None = None
        """All arguments; empty if yielded on arrival."""
        self._is_closed = False
        self._num_open = 1
        """Brackets: the call may stand in a field `function`."""

    def read(self) -> Reading[None]:
        """Reads the object, up to its end or to the first sign against a call."""
        if (yield from ahead(self._source, 1)) == "'":
            yield from self._read_python()
            return
        self._source.take(1)
        while (key := (yield from self._next_key())) is not None:
            self._keys.append(key)
            if not (yield from self._field(key)):
                break
        if self.name is None:
            return
        if self._arguments is None and self._is_closed:
            self._arguments = NO_ARGUMENTS
            yield CallArguments(NO_ARGUMENTS)
        is_cut = self._source.is_cut and self._source.is_spent and not self._is_closed
        if self._arguments is not None and not is_cut:
            yield CallEnded()

    def may_become_call(self, text: str) -> bool:
        """Whether more text could make a call of the object. `text`: of the object so far."""
        if self._names is None:
            return True
        found = _LAST_TEXT.search(text)
        known = [key for key in self._keys if key in _KEYS]
        if len(known) < len(self._keys):
            return False
        if found is None:
            return True
        return any(each.startswith(found[2]) for each in (self._names if found[1].startswith('"') else _KEYS))

    def _field(self, key: str) -> Reading[bool]:
        """Reads the value of a field; False where the call ends with it."""
        if key in _NAMES and self.name is None:
            if key == "function" and (yield from space(self._source)) == "{":
                self._source.take(1)
                self._num_open += 1
                return True
            name = yield from json_text(self._source)
            if not self._may_be(name):
                self.is_other = name is not None
                return False
            yield from self._begin(name)
            return True
        if key in _ARGUMENTS and self._arguments is None:
            return (yield from self._read_arguments())
        return (yield from json_value(self._source)) is not None

    def _may_be(self, name: Any) -> TypeGuard[str]:
        return isinstance(name, str) and is_name(name) and (self._names is None or name in self._names)

    def _begin(self, name: str) -> Reading[None]:
        self._source.settle()
        self.name = name
        yield CallBegun(name)
        if self._arguments:
            yield CallArguments(self._arguments)

    def _read_python(self) -> Reading[None]:
        """A dict in Python's syntax, read as a whole."""
        value = python_object((yield from python_value(self._source)))
        call = value.get("function", value) if isinstance(value, dict) else None
        if not isinstance(call, dict) or not self._may_be(call.get("name")):
            return
        arguments: Any = next((call[key] for key in _ARGUMENTS if call.get(key) is not None), {})
        self._arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        yield from self._begin(call["name"])
        yield CallEnded()

    def _read_arguments(self) -> Reading[bool]:
        told = ""
        if (yield from space(self._source)) == "{":
            if self.name is not None:
                yield CallArguments(told := "{")
            if (yield from ahead(self._source, 1)) == "'":
                text = yield from python_value(self._source)
                if (value := python_object(text)) is not None:  # else neither JSON nor Python: unchanged
                    text = json.dumps(value, ensure_ascii=False)
            elif self.name is not None:
                text = yield from json_value(self._source, _Behind(told))
                told = text or ""
            else:
                text = yield from json_value(self._source)
        else:
            text = yield from json_value(self._source)
        if text is None:
            return False
        self._arguments = _unpacked(text)
        if self.name is not None:
            yield CallArguments(self._arguments.removeprefix(told))
        return True

    def _next_key(self) -> Reading[str | None]:
        """The next field's key, up to its value; None = the object's end, or no key."""
        source = self._source
        first = yield from space(source)
        if first == ",":
            source.take(1)
            first = yield from space(source)
        while first == "}":
            source.take(1)
            self._num_open -= 1
            if self._num_open == 0:
                self._is_closed = True
                return None
            first = yield from space(source)
            if first == ",":
                source.take(1)
                first = yield from space(source)
        key = yield from json_text(source)
        if key is None:
            return None
        if (yield from space(source)) != ":":
            return None
        source.take(1)
        return key


class _Behind:
    """Makes parts of arguments whose beginning was yielded already."""

    def __init__(self, told: str) -> None:
        self._num_told = len(told)

    def __call__(self, text: str) -> CallArguments:
        behind = text[self._num_told :]
        self._num_told = max(0, self._num_told - len(text))
        return CallArguments(behind)


def python_object(text: str | None) -> Any:
    """The JSON value of a text in Python's syntax; None = not such a text."""
    try:
        value = ast.literal_eval(text or "")
        json.dumps(value, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return value


def _unpacked(text: str) -> str:
    """Some models write the arguments as a string holding the JSON; null and an empty string mean no arguments."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # the latter of thousands of brackets
        return text
    if value is None:
        return NO_ARGUMENTS
    return (value if value.strip() else NO_ARGUMENTS) if isinstance(value, str) else text
