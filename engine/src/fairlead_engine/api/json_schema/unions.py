"""Whether schemas exclude each other, which makes `oneOf` equivalent to `anyOf`."""

import json
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from fairlead_engine.api.json_schema import parts

_MOST_COMPARED = 64
"""Most schemas compared pairwise."""
_DEEPEST = 4
"""Depth of comparison, in properties and references."""

_KINDS = (("boolean", bool), ("number", int | float), ("string", str), ("array", list), ("object", dict))


def told_apart(schemas: Sequence[Any], tag: str, root: Any) -> bool:
    """Whether the schemas list disjoint values of a property, and exclude each other once all require the property."""
    return _are_apart([_literals(_property(_resolved(schema, root), tag), root) for schema in schemas])


def requiring(schema: dict[str, Any], tag: str) -> dict[str, Any]:
    required = schema.get("required", [])
    if not isinstance(required, list) or tag in required:
        return schema
    return {**schema, "required": [*required, tag]}


def exclude_one_another(schemas: Sequence[Any], root: Any) -> bool:
    """Whether no JSON value can meet two of the schemas, as far as types, literals and required properties show."""
    found = [_resolved(schema, root) for schema in schemas]
    tags = set.intersection(*(set(_required(schema)) for schema in found)) if found else set()
    if any(_are_apart([_literals(_property(schema, tag), root) for schema in found]) for tag in sorted(tags)):
        return True
    return len(found) <= _MOST_COMPARED and all(
        _exclude(first, second, root, _DEEPEST) for first, second in combinations(found, 2)
    )


def _exclude(first: Any, second: Any, root: Any, depth: int) -> bool:
    first, second = _resolved(first, root), _resolved(second, root)
    if not _kinds(first) & _kinds(second):
        return True
    literals = (_literals(first, root), _literals(second, root))
    if _are_apart(literals):
        return True
    if any(found is not None for found in literals) or depth == 0:
        return False
    if _kinds(first) & _kinds(second) != {"object"}:
        return False
    both = set(_required(first)) & set(_required(second))
    return any(_exclude(_property(first, name), _property(second, name), root, depth - 1) for name in sorted(both))


def _resolved(schema: Any, root: Any) -> dict[str, Any]:
    """Target of a reference without other keywords."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, dict) or schema.keys() != {"$ref"}:
            break
        schema = parts.target(root, schema["$ref"])
    return schema if isinstance(schema, dict) else {}


def _required(schema: dict[str, Any]) -> list[str]:
    """Properties required of an object; none where other types are allowed."""
    required = schema.get("required")
    if not isinstance(required, list) or parts.types(schema) != {"object"}:
        return []
    return [name for name in required if isinstance(name, str)]


def _property(schema: dict[str, Any], name: str) -> Any:
    properties = schema.get("properties")
    return properties.get(name, {}) if isinstance(properties, dict) else {}


def _kinds(schema: dict[str, Any]) -> frozenset[str]:
    """Types, with integers as numbers."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    kinds = parts.types(schema)
    if isinstance(values, list):
        kinds = frozenset(map(_kind, values))
    return kinds | {"integer"} if "number" in kinds else kinds


def _kind(value: Any) -> str:
    for kind, types in _KINDS:
        if isinstance(value, types):
            return kind
    return "null"


def _literals(schema: Any, root: Any) -> set[str] | None:
    """All allowed values as JSON; None = not listed."""
    schema = _resolved(schema, root)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return {_written(value) for value in values} if isinstance(values, list) else None


def _written(value: Any) -> str:
    is_whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if is_whole else value, sort_keys=True)


def _are_apart(sets: Iterable[set[str] | None]) -> bool:
    seen: set[str] = set()
    for each in sets:
        if each is None or each & seen:
            return False
        seen |= each
    return True
