"""The schemas within a schema, by keyword; targets of references; and schemas that no JSON text can meet, because each
text would contain another text of the same schema."""

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any] | bool
"""A schema in JSON. Values of other types are no parts."""

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
    """A copy with `change` applied to every direct subschema, and to values of unknown keywords, which references may
    point at."""
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
    """The schema and all parts of any depth, the deepest first."""
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
    """Target of a reference within `root`: `#`, `#/…`, and names of schemas. None = nothing, or relative to another
    URI."""
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
    """Whether a schema within it has a reference without a known target."""
    return any("$ref" in each and target(root, each["$ref"]) is None for each in within(root))


def is_pointer(reference: Any) -> bool:
    """Whether the reference is a pointer into the schema, not a name."""
    return isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))


def segments(reference: str) -> list[str]:
    """The names in a pointer's path."""
    pointer = unquote(reference.partition("#")[2])
    return [segment.replace("~1", "/").replace("~0", "~") for segment in pointer.split("/")[1:]]


def types(schema: dict[str, Any]) -> frozenset[str]:
    """Types that `type` allows; all types without a readable `type`."""
    named = schema.get("type")
    named = [named] if isinstance(named, str) else named
    if not isinstance(named, list) or not all(isinstance(each, str) and each in TYPES for each in named):
        return frozenset(TYPES)
    return frozenset(named)


def endless(root: dict[str, Any]) -> set[int]:
    """`id`s of the parts that no JSON text can meet."""
    nodes = [*within(root)]
    left = {id(node) for node in nodes}
    before = len(left) + 1
    while len(left) < before:  # from leaves towards the root, so mostly twice
        before = len(left)
        for node in nodes:
            if id(node) in left and _ends(node, root, left):
                left.discard(id(node))
    return left


def _ends(node: dict[str, Any], root: Any, left: set[int]) -> bool:
    def can(part: Any) -> bool:
        return part is not False and id(part) not in left

    if "$ref" in node and not can(target(root, node["$ref"])):
        return False
    if not all(map(can, _list(node, "allOf"))):
        return False
    if any(found and not any(map(can, found)) for found in (_list(node, "anyOf"), _list(node, "oneOf"))):
        return False
    if "enum" in node or "const" in node:
        return True
    kinds = types(node)
    if kinds - {"object", "array"}:
        return True
    return ("object" in kinds and all(map(can, _needed_properties(node)))) or (
        "array" in kinds and all(map(can, _needed_items(node)))
    )


def _list(node: dict[str, Any], name: str) -> list[Any]:
    found = node.get(name)
    return found if isinstance(found, list) else []


def _needed_properties(node: dict[str, Any]) -> list[Any]:
    properties, required = node.get("properties"), node.get("required")
    if not isinstance(required, list):
        return []
    known = properties if isinstance(properties, dict) else {}
    others = True if "patternProperties" in node else node.get("additionalProperties", True)
    return [known.get(name, others) for name in required if isinstance(name, str)]


def _needed_items(node: dict[str, Any]) -> list[Any]:
    least = node.get("minItems", 0)
    if not isinstance(least, int) or least <= 0:
        return []
    items = node.get("items", True)
    first, more = (items, node.get("additionalItems", True)) if isinstance(items, list) else ([], items)
    first = [*first, *_list(node, "prefixItems")][:least]
    return [*first, more] if len(first) < least else first
