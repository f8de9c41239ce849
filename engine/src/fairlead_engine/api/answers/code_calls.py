"""Calls that are written as code: `get_weather(city="Oslo", days=[1, 2])`.

The reader makes JSON of growing arguments, of literals alone: texts, numbers, words, lists and dictionaries.
"""

import json
import re
from collections.abc import Collection
from typing import NamedTuple

from fairlead_engine.api.answers.answer_text import (
    AnswerSource,
    CallArguments,
    CallBegun,
    CallEnded,
    Reading,
    ahead,
    left_out,
    space,
    starts_with,
    until,
)
from fairlead_engine.api.answers.calls import Found, cut, is_name
from fairlead_engine.api.answers.tagged_calls import as_json

_MOST_NESTED = 64
_WORD = re.compile(r"[^\s,:=()\[\]{}'\"<]*")
_NAME = re.compile(r"[\w.:/-]{0,256}")
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[^xuU])", re.DOTALL)
_BEGUN_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]?|u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7})?")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_BEHIND_TEXT = ("", ",", ":", ")", "]", "}")
_AS_THEY_ARE = "'\"\\/"


class Code(NamedTuple):
    """A syntax of calls."""

    before: str = ""
    """Before a call's name."""
    open: str = "("
    close: str = ")"
    """Around arguments."""
    assign: str = "="
    """Between an argument's name and its value."""
    between: str = ", "
    """Between arguments, and between values of a list."""
    quotes: tuple[str, ...] = ('"', "'")
    """Around texts, the first where a grammar writes."""
    escapes: bool = True
    """Whether a backslash in a text is the beginning of an escape."""


PYTHON = Code()


def code_call(source: AnswerSource, code: Code, names: Collection[str] | None = None) -> Reading[Found]:
    """Reads a call, from its name on. `names`: the known functions; None = any name."""
    source.mark()
    yield from space(source)
    yield from starts_with(source, code.before)
    name = yield from _name(source)
    is_open = (yield from space(source)) == code.open
    if is_open and is_name(name) and (names is None or name in names):
        source.settle()
        source.take(1)
        yield CallBegun(name)
        if (yield from _pairs(source, code, code.assign, code.close)):
            yield CallEnded()
        else:
            yield from left_out(source, *code.quotes)
        return Found.CALL
    is_spent = source.is_spent
    source.back()
    if not is_spent or (names is not None and not any(each.startswith(name) for each in names)):
        return Found.OTHER
    return (yield from cut(source))


def _name(source: AnswerSource) -> Reading[str]:
    while True:
        found = _NAME.match(source.rest)
        assert found is not None
        if found.end() < len(source.rest) or source.is_over:
            return source.take(found.end())
        yield None


def _pairs(source: AnswerSource, code: Code, assign: str, close: str, depth: int = 0) -> Reading[bool]:
    """Reads names with values up to `close`, behind the opening bracket; returns whether they are whole."""
    yield CallArguments("{")
    before = ""
    while (first := (yield from space(source))) != close:
        if before:
            if first != ",":
                return False
            source.take(1)
            if (yield from space(source)) == close:
                break
        key = yield from _key(source, code)
        if key is None or (yield from space(source)) != assign:
            return False
        source.take(1)
        yield CallArguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
        if not (yield from _value(source, code, depth)):
            return False
        before = ", "
    source.take(1)
    yield CallArguments("}")
    return True


def _key(source: AnswerSource, code: Code) -> Reading[str | None]:
    """A name, bare or as a text; None = no name, or cut off."""
    if (quote := (yield from starts_with(source, *code.quotes))) is None:
        name = yield from _bare(source)
        return name or None
    held: list[str] = []
    reading = _text(source, code, quote)
    try:
        while True:
            part = next(reading)
            if part is None:
                yield None
            elif isinstance(part, CallArguments):
                held.append(part.text)
    except StopIteration as end:
        return str(json.loads(f'"{"".join(held)}"')) if end.value else None


def _value(source: AnswerSource, code: Code, depth: int) -> Reading[bool]:
    """Yields a value as JSON; returns whether the value is whole."""
    first = yield from space(source)
    if first in ("{", "["):
        if depth >= _MOST_NESTED:
            return False
        source.take(1)
        if first == "{":
            return (yield from _pairs(source, code, ":", "}", depth + 1))
        return (yield from _items(source, code, depth + 1))
    if (quote := (yield from starts_with(source, *code.quotes))) is not None:
        yield CallArguments('"')
        if not (yield from _text(source, code, quote)):
            return False
        yield CallArguments('"')
        return True
    word = yield from _bare(source)
    if not word:
        return False
    yield CallArguments(as_json(word, ()))
    return True


def _items(source: AnswerSource, code: Code, depth: int) -> Reading[bool]:
    yield CallArguments("[")
    before = ""
    while (first := (yield from space(source))) != "]":
        if before:
            if first != ",":
                return False
            source.take(1)
            if (yield from space(source)) == "]":
                break
        yield CallArguments(before)
        if not (yield from _value(source, code, depth)):
            return False
        before = ", "
    source.take(1)
    yield CallArguments("]")
    return True


def _bare(source: AnswerSource) -> Reading[str | None]:
    """A word or number; None = cut off."""
    while True:
        found = _WORD.match(source.rest)
        assert found is not None
        if found.end() < len(source.rest):
            return source.take(found.end())
        if source.is_over:
            source.take(found.end())
            return None
        yield None


def _text(source: AnswerSource, code: Code, quote: str) -> Reading[bool]:
    """Yields a text behind its quote as JSON without quotes; returns whether the text is whole. A quote that no
    delimiter follows is part of the text: models forget escapes. At the answer's end nothing follows."""
    marks = (quote, "\\") if code.escapes else (quote,)
    while (mark := (yield from until(source, marks, _written, is_text=False))) is not None:
        if mark != quote:
            source.unread(1)
            if not (yield from _escape(source)):
                return False
        elif (following := (yield from ahead(source))) in _BEHIND_TEXT:
            return bool(following)
        else:
            yield _written(quote)
    return False


def _written(text: str) -> CallArguments:
    return CallArguments(json.dumps(text, ensure_ascii=False)[1:-1])


def _escape(source: AnswerSource) -> Reading[bool]:
    """Yields the character of an escape; False = cut off."""
    while (found := _ESCAPE.match(source.rest)) is None:
        if _BEGUN_ESCAPE.fullmatch(source.rest) is None:  # no escape
            yield _written(source.take(1))
            return True
        if source.is_over:
            source.take(len(source.rest))
            return False
        yield None
    text = source.take(found.end())
    kind = text[1]
    if kind not in "xuU":
        yield _written(_ESCAPED.get(kind, kind if kind in _AS_THEY_ARE else text))
        return True
    number = int(text[2:], 16)
    if 0xD800 <= number < 0xE000:  # half of a pair, which JSON writes in two escapes
        yield CallArguments(f"\\u{number:04x}")
    else:
        yield _written(chr(number) if number <= 0x10FFFF else text)
    return True
