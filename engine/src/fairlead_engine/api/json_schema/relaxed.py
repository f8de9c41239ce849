"""A schema that no grammar can enforce as a whole → a schema that allows no less, and can be enforced.

Tries, in order: the unchanged schema; each part with as many keywords as can be enforced together; the result, cut at
smaller and smaller depths; and the widest schema.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from fairlead_engine.api.json_schema import parts
from fairlead_engine.api.json_schema.normal_form import DEEPEST, normal_form

Fits = Callable[[dict[str, Any]], bool]
"""Whether a grammar can be made of a schema."""
_MOST_PARTS = 2_000
"""Parts examined one by one."""
_DEPTHS = (16, 8, 4, 2, 1)
_FIRST = (
    "type", "enum", "const", "properties", "patternProperties", "additionalProperties", "required", "prefixItems",
    "items", "additionalItems", "anyOf", "oneOf", "allOf",
)  # fmt: skip
"""Keywords by importance; others follow in the schema's order."""
_RESTS = {
    "additionalProperties": ("properties", "patternProperties"),
    "items": ("prefixItems",),
    "additionalItems": ("items",),
}
"""Keywords about the rest left by other keywords, without which they would ask more."""


def relaxed(schema: dict[str, Any], fits: Fits, widest: dict[str, Any]) -> dict[str, Any]:
    """`widest`: the last resort."""
    return next((each for each in _attempts(schema, fits) if isinstance(each, dict) and _can(fits, each)), widest)


def _attempts(schema: dict[str, Any], fits: Fits) -> Iterator[parts.Schema]:
    if parts.depth(schema) <= DEEPEST and not parts.points_elsewhere(schema):
        yield normal_form(schema)
    whole: Any = schema if parts.depth(schema) <= DEEPEST else _cut(schema, _DEPTHS[0])
    whole = normal_form(whole, without_end=True)
    if isinstance(whole, dict) and len(parts.within(whole)) <= _MOST_PARTS:
        whole = normal_form(_by_parts(whole, fits), without_end=True)
        yield whole
    for depth in _DEPTHS:
        whole = whole if isinstance(whole, bool) else _pointing(_cut(whole, depth))
        yield whole


def _can(fits: Fits, schema: dict[str, Any]) -> bool:
    try:
        return fits(schema)
    except RecursionError:
        return False


# -- part by part ------------------------------------------------------------------------------------------------------


def _by_parts(root: dict[str, Any], fits: Fits) -> dict[str, Any]:
    known: dict[str, list[str]] = {}

    def part(schema: Any) -> Any:
        if isinstance(schema, bool):
            return schema
        node = parts.changed(_well_formed(schema), part)
        alone = _alone(node)
        try:
            key = json.dumps(alone)
        except RecursionError:
            return {}
        if key not in known:
            known[key] = [*alone] if _can(fits, alone) else _kept(alone, fits)
        dropped = alone.keys() - set(known[key])
        return {name: value for name, value in node.items() if name not in dropped}

    return _pointing(part(root))


def _well_formed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with {} in place of values of other types, and with types in lower case."""
    node = dict(schema)
    for name in parts.MAPS:
        if isinstance(node.get(name), dict):
            node[name] = {key: each if parts.is_schema(each) else {} for key, each in node[name].items()}
    for name in parts.LISTS:
        if isinstance(node.get(name), list):
            node[name] = [each if parts.is_schema(each) else {} for each in node[name]]
    if isinstance(node.get("required"), list):
        node["required"] = [each for each in node["required"] if isinstance(each, str)]
    if isinstance(node.get("type"), str):
        node["type"] = node["type"].lower()
    return node


def _alone(node: dict[str, Any]) -> dict[str, Any]:
    """The schema with any value allowed in the parts, and without references."""
    alone = parts.changed(node, lambda below: {} if isinstance(below, dict) else below)
    return {name: value for name, value in alone.items() if name not in ("$ref", "$defs", "definitions")}


def _kept(alone: dict[str, Any], fits: Fits) -> list[str]:
    """As many keywords as can be enforced together."""
    kept: dict[str, Any] = {}
    for name in sorted(alone, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST)):
        if any(rest in alone and rest not in kept for rest in _RESTS.get(name, ())):
            continue
        if _can(fits, {**kept, name: alone[name]}):
            kept[name] = alone[name]
    return [*kept]


# -- as a whole --------------------------------------------------------------------------------------------------------


def _cut(schema: Any, depth: int) -> Any:
    """The schema with any value allowed below `depth` levels."""
    if isinstance(schema, bool):
        return schema
    return parts.changed(schema, lambda below: _cut(below, depth - 1) if depth else True)


def _pointing(root: dict[str, Any]) -> dict[str, Any]:
    """The schema without references to missing targets."""

    def pointing(schema: Any) -> Any:
        if isinstance(schema, bool):
            return schema
        node = parts.changed(schema, pointing)
        if "$ref" in node and parts.target(root, node["$ref"]) is None:
            del node["$ref"]
        return node

    return pointing(root)  # type: ignore[no-any-return]
