"""Calls that are written as JSON objects: `{"name": …, "arguments": {…}}`."""

import json
from collections.abc import Collection

from fairlead_engine.server.answers.answer_text import Source, json_text, json_value, space
from fairlead_engine.server.answers.parts import CallArguments, CallBegun, Reading

_ARGUMENTS = ("arguments", "parameters")


def call_object(source: Source, names: Collection[str] | None = None) -> Reading[bool]:
    """Reads such an object, its fields in any order. False where something else stands there, or a name that is none of
    `names`: of that nothing was read. A call that is cut off, or goes on as no object does, ends there."""
    source.mark()
    first = yield from space(source)
    if first != "{":
        source.back()
        return False
    source.take(1)
    name: str | None = None
    arguments: str | None = None
    while True:
        key = yield from _next_key(source)
        if key is None:
            break
        if key == "name" and name is None:
            name = yield from json_text(source)
            if name is None or (names is not None and name not in names):
                name = None
                break
            source.settle()
            yield CallBegun(name)
            if arguments is not None:
                yield CallArguments(arguments)
        elif key in _ARGUMENTS and arguments is None:
            first = yield from space(source)
            if name is None or first != "{":
                text = yield from json_value(source)
                if text is None:
                    break
                arguments = _unpacked(text)
                if name is not None:
                    yield CallArguments(arguments)
            else:
                arguments = ""
                if (yield from json_value(source, CallArguments)) is None:
                    break
        elif (yield from json_value(source)) is None:
            break
    if name is None:
        source.back()
        return False
    if arguments is None:
        yield CallArguments("{}")
    return True


def _next_key(source: Source) -> Reading[str | None]:
    """The key of an object's next field, up to its value; None at the object's end, and where there is no key."""
    first = yield from space(source)
    if first == ",":
        source.take(1)
        first = yield from space(source)
    if first == "}":
        source.take(1)
        return None
    key = yield from json_text(source)
    if key is None:
        return None
    if (yield from space(source)) != ":":
        return None
    source.take(1)
    return key


def _unpacked(text: str) -> str:
    """Some models write the arguments as a string that holds the JSON; null is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if value is None:
        return "{}"
    return value if isinstance(value, str) else text
