"""A growing answer's text and parts, and readers of text up to a marker or of a piece of JSON.

Readers are generators (`Reading`), so a format's reader is written as for a complete text.
"""

import json
from collections.abc import Callable, Generator
from typing import TypeVar

import msgspec


class Content(msgspec.Struct, frozen=True, gc=False):
    text: str


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """More of the model's reasoning before the text."""

    text: str


class CallBegun(msgspec.Struct, frozen=True, gc=False):
    """Another call of a function."""

    name: str
    id: str | None = None
    """The model's id of the call; None = the model writes none."""


class CallArguments(msgspec.Struct, frozen=True, gc=False):
    """More of the last call's arguments, as the model writes them: JSON, usually."""

    text: str


class CallEnded(msgspec.Struct, frozen=True, gc=False):
    """The last call is whole."""


class CallCut(msgspec.Struct, frozen=True, gc=False):
    """The answer ends in an incomplete call, before the end of its name."""


Part = Content | Reasoning | CallBegun | CallArguments | CallEnded | CallCut
Result = TypeVar("Result")
Reading = Generator[Part | None, None, Result]
"""Reads a growing answer: yields the parts, and None to wait for more text."""


_SPACE = " \t\r\n"
_LONGEST_NAME = 1024
"""Longest name, in characters, searched for its end."""
_BEHIND_WORD = ",}]" + _SPACE


class AnswerSource:
    """Text that has come and was not read."""

    def __init__(self) -> None:
        self.is_over = False
        """Whether the text is complete."""
        self.is_cut = False
        """Whether `is_over` is due to a length limit or stop string, not to the model."""
        self._text = ""
        self._num_before = 0
        """Characters that were read and are no longer in `_text`."""
        self._at = 0
        self._marked: int | None = None

    def add(self, text: str) -> None:
        start = self._at if self._marked is None else self._marked
        self._text = self._text[start:] + text
        self._num_before += start
        self._at -= start
        if self._marked is not None:
            self._marked = 0

    @property
    def rest(self) -> str:
        return self._text[self._at :]

    @property
    def num_read(self) -> int:
        """Characters of the answer that were read."""
        return self._num_before + self._at

    @property
    def is_spent(self) -> bool:
        """All text has come and was read."""
        return self.is_over and self._at == len(self._text)

    def take(self, number: int) -> str:
        self._at += number
        return self._text[self._at - number : self._at]

    def put_back(self, text: str) -> None:
        """Puts text back to be read before the rest."""
        assert self._marked is None
        self._num_before = self.num_read - len(text)
        self._text, self._at = text + self.rest, 0

    def unread(self, number: int) -> None:
        """Moves back by a number of characters."""
        self._at -= number

    def mark(self) -> None:
        """Remembers this position for `back`."""
        self._marked = self._at

    def back(self) -> None:
        """Returns to the marked position."""
        assert self._marked is not None
        self._at, self._marked = self._marked, None

    def settle(self) -> None:
        """Forgets the marked position."""
        self._marked = None


def until(
    source: AnswerSource, markers: tuple[str, ...], make: Callable[[str], Part | None], *, is_text: bool = True
) -> Reading[str | None]:
    """Yields the text before the first marker as it comes, and reads the marker; None = no marker. A possible beginning
    of a marker at the end is dropped from a cut answer, and unless `is_text` (for people) from a finished one."""
    while True:
        text = source.rest
        found = min(((place, marker) for marker in markers if (place := text.find(marker)) >= 0), default=None)
        is_ended = source.is_over and not source.is_cut and is_text
        size = found[0] if found is not None else len(text) - (0 if is_ended else _num_begun(text, markers))
        if size:
            yield make(source.take(size))
        if found is not None:
            return source.take(len(found[1]))
        if source.is_over:
            source.take(len(source.rest))
            return None
        yield None


def text_until(source: AnswerSource, *markers: str) -> Reading[tuple[str, str | None]]:
    """Reads all of the text before the first marker, and the marker; None = no marker nearby."""
    while True:
        text = source.rest[:_LONGEST_NAME]
        found = min(((place, marker) for marker in markers if (place := text.find(marker)) >= 0), default=None)
        is_sure = source.is_over or len(source.rest) > _LONGEST_NAME
        if found is not None:
            source.take(found[0] + len(found[1]))
            return text[: found[0]], found[1]
        if is_sure:
            return source.take(len(text)), None
        yield None


def starts_with(source: AnswerSource, *texts: str) -> Reading[str | None]:
    """Reads the next text; None = another text."""
    while True:
        rest = source.rest
        if found := next((text for text in texts if rest.startswith(text)), None):
            return source.take(len(found))
        if source.is_over or not any(text.startswith(rest) for text in texts):
            return None
        yield None


def without_begun(text: str, *markers: str) -> str:
    """A text without the beginning of a marker at its end."""
    return text[: len(text) - _num_begun(text, markers)]


def left_out(source: AnswerSource, *texts: str) -> Reading[None]:
    """Drops the beginning of one of the texts at the end of an answer."""
    while any(text.startswith(source.rest) for text in texts):
        if source.is_over:
            source.take(len(source.rest))
            return
        yield None


def is_begun(source: AnswerSource, *texts: str) -> bool:
    """Whether the answer ends with the beginning of one of the texts, or with nothing."""
    return source.is_over and any(text.startswith(source.rest) for text in texts)


def space(source: AnswerSource) -> Reading[str]:
    """Reads white space; returns the next character without reading it, empty at the end."""
    while True:
        rest = source.rest
        behind = rest.lstrip(_SPACE)
        source.take(len(rest) - len(behind))
        if behind or source.is_over:
            return behind[:1]
        yield None


def json_value(source: AnswerSource, make: Callable[[str], Part] | None = None) -> Reading[str | None]:
    """Reads a JSON value and returns the text; None = cut off. `make`: yields the text as parts on arrival. Looks at
    brackets and quotes only, not at validity."""
    first = yield from space(source)
    found, scan = "", _Scan(is_bare=first not in ("{", "[", '"'))
    while True:
        text = source.take(scan.push(source.rest))
        found += text
        if make is not None and text:
            yield make(text)
        if scan.is_whole:
            return found
        if source.is_over:
            return found if scan.is_bare and found and not source.is_cut else None
        yield None


def python_value(source: AnswerSource) -> Reading[str | None]:
    """Reads a dict, list or text in Python's syntax, and returns the text; None = cut off."""
    found, scan = "", _Scan(is_bare=False, quotes="'\"")
    while not scan.is_whole:
        if source.is_spent:
            return None
        found += source.take(scan.push(source.rest))
        if not (scan.is_whole or source.is_over):
            yield None
    return found


def ahead(source: AnswerSource, number: int = 0) -> Reading[str]:
    """The character behind the next `number` and white space, without reading; empty at the end."""
    while True:
        behind = source.rest[number:].lstrip(_SPACE)
        if behind or source.is_over:
            return behind[:1]
        yield None


class _Scan:
    """Looks for the end of a value in JSON, or in Python with `quotes` of both kinds."""

    def __init__(self, *, is_bare: bool, quotes: str = '"') -> None:
        """`is_bare`: a number or word, which ends before the first character of another kind."""
        self.is_bare, self.is_whole = is_bare, False
        self._depth, self._is_string, self._is_escaped = 0, False, False
        self._quotes, self._quote = quotes, ""

    def push(self, text: str) -> int:
        """How many of these characters belong to the value."""
        if self.is_bare:
            size = next((place for place, character in enumerate(text) if character in _BEHIND_WORD), len(text))
            self.is_whole = size < len(text)
            return size
        for place, character in enumerate(text):
            self._read(character)
            if self.is_whole:
                return place + 1
        return len(text)

    def _read(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif self._is_string:
            self._is_escaped = character == "\\"
            self._is_string = character != self._quote
            self.is_whole = not self._is_string and not self._depth
        elif character in self._quotes:
            self._is_string, self._quote = True, character
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.is_whole = self._depth <= 0


def json_text(source: AnswerSource) -> Reading[str | None]:
    """Reads a JSON string and returns the content; None = another value."""
    first = yield from space(source)
    if first != '"':
        return None
    text = yield from json_value(source)
    try:
        return str(json.loads(text)) if text is not None else None
    except ValueError:
        return None


def _num_begun(text: str, markers: tuple[str, ...]) -> int:
    """Number of characters at the end that may begin a marker."""
    most = min(len(text), max(map(len, markers), default=1) - 1)
    sizes = range(most, 0, -1)
    return next((size for size in sizes if any(marker.startswith(text[-size:]) for marker in markers)), 0)
