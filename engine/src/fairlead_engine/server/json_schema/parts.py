"""The schemas within a schema, by the keywords that hold them, and what references point at."""

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any] | bool
"""As JSON has it. Whatever else stands where a schema should is no part."""

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
"""Keywords whose values map names to schemas."""
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
"""Keywords whose values may be lists of schemas."""
ONES = (
    "items", "additionalItems", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else",
    "unevaluatedItems", "unevaluatedProperties", "contentSchema",
)  # fmt: skip
"""Keywords whose values may be one schema."""
DATA = ("enum", "const", "default", "examples", "example", "required", "dependentRequired")
"""Keywords whose values hold no schemas."""
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def changed(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy with `change` made of every schema right below it, and of what keywords hold that nobody knows: a
    reference may point there."""
    return {name: _changed_value(name, value, change) for name, value in schema.items()}


def _changed_value(name: str, value: Any, change: Callable[[Any], Any]) -> Any:
    if name in MAPS and isinstance(value, dict):
        return {key: change(each) if is_schema(each) else each for key, each in value.items()}
    if name in LISTS and isinstance(value, list):
        return [change(each) if is_schema(each) else each for each in value]
    if name in DATA or not isinstance(value, dict if name not in ONES else dict | bool):
        return value
    return change(value)


def within(schema: Any) -> list[dict[str, Any]]:
    """It and all schemas within it, what is deeper first."""
    found, left = [], [schema]
    while left:
        if isinstance(schema := left.pop(), dict):
            found.append(schema)
            changed(schema, left.append)
    return found[::-1]


def depth(value: Any) -> int:
    """How many levels of objects and lists a JSON value has."""
    num_levels, level = 0, [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        num_levels += 1
        level = [below for each in level for below in (each.values() if isinstance(each, dict) else each)]
    return num_levels


def target(root: Any, reference: Any) -> Any:
    """What a reference points at within `root`: `#` and `#/…`, and the names of schemas as they stand there. None for
    nothing, and for what would have to be resolved against another URI."""
    if not isinstance(reference, str):
        return None
    if not is_pointer(reference):
        return next((each for each in within(root) if reference in _names(each)), None)
    found = root
    for segment in segments(reference):
        if isinstance(found, list) and segment.isdecimal() and int(segment) < len(found):
            found = found[int(segment)]
        elif isinstance(found, dict) and segment in found:
            found = found[segment]
        else:
            return None
    return found if is_schema(found) else None


def _names(schema: dict[str, Any]) -> tuple[Any, ...]:
    anchor = schema.get("$anchor")
    return (schema.get("$id"), f"#{anchor}" if isinstance(anchor, str) else None)


def points_elsewhere(root: Any) -> bool:
    """Whether a schema within it refers to what is not known to be there."""
    return any("$ref" in each and target(root, each["$ref"]) is None for each in within(root))


def is_pointer(reference: Any) -> bool:
    """Whether it is a place within the schema, and not a name."""
    return isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))


def segments(reference: str) -> list[str]:
    """The names that a pointer goes through."""
    pointer = unquote(reference.partition("#")[2])
    return [segment.replace("~1", "/").replace("~0", "~") for segment in pointer.split("/")[1:]]


def types(schema: dict[str, Any]) -> frozenset[str]:
    """The types that `type` allows; all where it says nothing that can be read."""
    named = schema.get("type")
    named = [named] if isinstance(named, str) else named
    if not isinstance(named, list) or not all(isinstance(each, str) and each in TYPES for each in named):
        return frozenset(TYPES)
    return frozenset(named)
