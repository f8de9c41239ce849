"""Calls with each argument in tags of its own: `<parameter=city>Oslo</parameter>`.

The reader makes JSON of growing arguments. Texts in tags have no quotes: the tool's schema distinguishes texts from
other values.
"""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from fairlead_engine.api.answers.answer_text import (
    AnswerSource,
    CallArguments,
    CallBegun,
    CallEnded,
    Reading,
    left_out,
    space,
    starts_with,
    text_until,
    until,
    without_begun,
)
from fairlead_engine.api.answers.calls import NO_ARGUMENTS, Found, cut, is_name, python_object
from fairlead_engine.api.json_schema import parts

_MOST_REFERENCES = 8
_KINDS: Mapping[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number", "integer"),
    dict: ("object",),
    list: ("array",),
    type(None): ("null",),
}


class Tags(NamedTuple):
    """How such calls are written."""

    name: str
    """Before a call's name; empty if the name directly follows the marker of all calls."""
    name_end: str
    """Behind a call's name; empty where the first argument or the end follows directly."""
    key: str
    key_end: str
    """Around an argument's name."""
    value: str
    value_end: str
    """Around an argument's value; the former may be empty."""
    end: str
    """Behind a call."""
    padding: str = ""
    """White space around a value, left out of the value."""
    gap: str = "\n"
    """White space of any kind."""
    other_end: str = ""
    """Instead of `key_end` before a value that is no text; empty where the schema alone distinguishes texts."""

    def before(self, key: str, *, is_text: bool) -> str:
        """Text before an argument's value."""
        key_end = self.key_end if is_text or not self.other_end else self.other_end
        return f"{self.key}{key}{key_end}{self.gap + self.value if self.value else ''}{self.padding}"


def tagged_call(
    source: AnswerSource, tags: Tags, names: Collection[str], block_end: str, *, is_known: bool = False
) -> Reading[Found]:
    """Reads a call, from its name on. `names`: the available functions, possibly mapped to schemas. `block_end`:
    another end of the call. `is_known`: whether only `names` are calls."""
    source.mark()
    ends = (tags.name_end,) if tags.name_end else (tags.key, tags.end)
    text, marker = yield from text_until(source, *ends)
    name = text.strip()
    if marker is None:
        is_spent = source.is_spent
        source.back()
        begun = without_begun(source.rest, *ends).strip()
        return (yield from cut(source)) if is_spent and (not begun or is_name(begun)) else Found.OTHER
    if not is_name(name) or (is_known and name not in names):
        source.back()
        return Found.OTHER
    source.settle()
    if not tags.name_end:
        source.unread(len(marker))
    yield CallBegun(name)
    yield from _arguments(source, tags, names.get(name, {}) if isinstance(names, Mapping) else {}, block_end)
    return Found.CALL


def _arguments(source: AnswerSource, tags: Tags, schema: Mapping[str, Any], block_end: str) -> Reading[None]:
    before, given = "{", set[str]()
    while True:
        yield from space(source)
        tag = yield from starts_with(source, tags.key, tags.end, block_end)
        if tag is None:
            yield from left_out(source, tags.key, tags.end, block_end)
            return
        if tag != tags.key:
            if tag != tags.end:
                source.unread(len(tag))
            yield CallArguments(NO_ARGUMENTS if before == "{" else "}")
            yield CallEnded()
            return
        key, marker = yield from text_until(source, tags.key_end, *filter(None, (tags.other_end,)))
        if marker is None:
            return
        if tags.value:
            yield from space(source)
            if (yield from starts_with(source, tags.value)) is None:
                yield from left_out(source, tags.value)
                return
        key = key.strip()
        yield CallArguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
        before = ", "
        given.add(key)
        others = _properties(schema).keys() - given
        kinds = kinds_of(_properties(schema).get(key), schema)
        if tags.other_end:
            kinds = {"string"} if marker == tags.key_end else set()
        if not (yield from _value(source, tags, kinds, others)):
            return


def _value(source: AnswerSource, tags: Tags, kinds: Collection[str], others: Collection[str]) -> Reading[bool]:
    """Yields a value as JSON; returns whether the value is whole. `others`: arguments that may follow."""
    if set(kinds) != {"string"}:
        held: list[str] = []

        def hold(text: str) -> CallArguments:
            held.append(text)
            return CallArguments("")

        is_whole = yield from _until_value_end(source, tags, others, hold)
        if is_whole:
            yield CallArguments(as_json(_Text(tags.padding).stripped("".join(held)), kinds))
        return is_whole
    text = _Text(tags.padding)
    yield CallArguments('"')
    if not (yield from _until_value_end(source, tags, others, text.more)):
        return False
    yield CallArguments('"')
    return True


def _until_value_end(
    source: AnswerSource, tags: Tags, others: Collection[str], make: Callable[[str], CallArguments]
) -> Reading[bool]:
    """Yields a value up to its end, or up to the next argument on a new line: models forget the end."""
    while (marker := (yield from until(source, (tags.value_end, "\n" + tags.key), make, is_text=False))) is not None:
        if marker == tags.value_end:
            return True
        source.unread(len(tags.key))
        source.mark()
        source.take(len(tags.key))
        key, end = yield from text_until(source, tags.key_end, *filter(None, (tags.other_end,)))
        if end is None and source.is_spent:
            source.settle()
            return False
        source.back()
        if end is not None and key.strip() in others:
            yield make(tags.padding)
            return True
        yield make("\n" + source.take(len(tags.key)))
    return False


class _Text:
    """A text, without its padding, as a JSON string in pieces."""

    def __init__(self, padding: str) -> None:
        self._padding = padding
        self._before = padding
        self._held = ""

    def more(self, text: str) -> CallArguments:
        text = self._held + text
        self._held = ""
        if self._before:
            if self._before.startswith(text):
                self._held = text
                return CallArguments("")
            text, self._before = text.removeprefix(self._before), ""
        if self._padding and text.endswith(self._padding):
            text, self._held = text.removesuffix(self._padding), self._padding
        return CallArguments(json.dumps(text, ensure_ascii=False)[1:-1])

    def stripped(self, text: str) -> str:
        return text.removeprefix(self._padding).removesuffix(self._padding) if self._padding else text


def as_json(text: str, kinds: Collection[str]) -> str:
    """An unquoted value as JSON; a text if the value is of another kind."""
    written = text.strip()
    try:
        value = json.loads(written, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        value = python_object(written)
        if value is None and written != "None":
            return json.dumps(text, ensure_ascii=False)
        written = json.dumps(value, ensure_ascii=False)
    is_one = not kinds or "string" not in kinds or any(kind in kinds for kind in _KINDS.get(type(value), ()))
    return written if is_one else json.dumps(text, ensure_ascii=False)


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def kinds_of(schema: Any, root: Mapping[str, Any], num_references: int = 0) -> set[str]:
    """Types named by a schema; empty = none named."""
    if not isinstance(schema, Mapping):
        return set()
    if isinstance(reference := schema.get("$ref"), str) and num_references < _MOST_REFERENCES:
        return kinds_of(parts.target(root, reference), root, num_references + 1)
    named = schema.get("type")
    kinds = {named} if isinstance(named, str) else {each for each in named if isinstance(each, str)} if named else set()
    for word in ("anyOf", "oneOf"):
        for part in schema.get(word) or ():
            kinds |= kinds_of(part, root, num_references + 1) if num_references < _MOST_REFERENCES else set()
    values = schema.get("enum") or ()
    if not kinds and values and all(isinstance(value, str) for value in values):
        kinds = {"string"}
    return kinds
