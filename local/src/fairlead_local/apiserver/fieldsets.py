"""Sets of field paths, and merging by them: the arithmetic under server-side apply.

Pure. A path is a tuple of the keys that `FieldsV1` uses: `f:replicas` for a field, `k:{"name":"engine"}` for an item of
a list told apart by keys, `v:"x"` for an item of a set. Source: the Kubernetes documentation of server-side apply and
the list and map types of structural schemas (`x-kubernetes-list-type`, `-list-map-keys`, `-map-type`).
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fairlead_local.apiserver.status import Json, bad_request
from fairlead_local.apiserver.structural import Schema, field_schema

Path = tuple[str, ...]
FieldSet = frozenset[Path]
EMPTY: FieldSet = frozenset()
_ABSENT = object()


class MergeShape(Enum):
    """Merging of a value: as a whole, field by field, item by key, or item by value."""

    LEAF = 1
    FIELDS = 2
    KEYED = 3
    SET = 4


@dataclass(frozen=True, slots=True)
class Difference:
    """`changed` holds paths that are new or have another value; `removed` those that are gone."""

    changed: FieldSet
    removed: FieldSet


def shape(schema: Schema, value: Any) -> MergeShape:
    """A value without a schema merges like an unknown field: objects by field, lists as a whole."""
    if isinstance(value, dict):
        return MergeShape.LEAF if schema.get("x-kubernetes-map-type") == "atomic" else MergeShape.FIELDS
    if isinstance(value, list):
        kind = schema.get("x-kubernetes-list-type")
        if kind == "map" and all(isinstance(item, dict) for item in value):
            return MergeShape.KEYED
        return MergeShape.SET if kind == "set" else MergeShape.LEAF
    return MergeShape.LEAF


def children(schema: Schema, value: Any) -> dict[str, tuple[Schema, Any]]:
    """Path element → (schema, value) of everything directly below a value; empty for a leaf.

    Raises 400 for a keyed list or a set that holds one item twice.
    """
    kind = shape(schema, value)
    if kind is MergeShape.LEAF:
        return {}
    if kind is MergeShape.FIELDS:
        return {f"f:{field}": (field_schema(schema, field) or {}, item) for field, item in value.items()}
    found: dict[str, tuple[Schema, Any]] = {}
    for item in value:
        element = _key(schema, item) if kind is MergeShape.KEYED else f"v:{json.dumps(item)}"
        if element in found:
            raise bad_request(f"duplicate entries for key {readable((element,))}")
        found[element] = schema.get("items", {}), item
    return found


def fields_of(schema: Schema, value: Any, path: Path = ()) -> FieldSet:
    """Every path in a value: the fields of a manager after an apply."""
    kind = shape(schema, value)
    if kind is MergeShape.LEAF:
        return frozenset([path])
    below = (fields_of(inner, item, (*path, key)) for key, (inner, item) in children(schema, value).items())
    is_member = path and (not value or path[-1].startswith("k:"))
    return EMPTY.union([path] if is_member else (), *below)


def compare(schema: Schema, old: Any, new: Any) -> Difference:
    """The difference between two states of an object."""
    changed: set[Path] = set()
    removed: set[Path] = set()

    def walk(schema: Schema, old: Any, new: Any, path: Path) -> None:
        if old is _ABSENT:
            changed.update(_whole(schema, new, path))
        elif new is _ABSENT:
            removed.update(_whole(schema, old, path))
        elif shape(schema, old) is shape(schema, new) is not MergeShape.LEAF:
            before, after = children(schema, old), children(schema, new)
            for element, (below, _) in (before | after).items():
                was, now = (side.get(element, (None, _ABSENT))[1] for side in (before, after))
                walk(below, was, now, (*path, element))
        elif old != new:
            changed.add(path)

    walk(schema, old, new, ())
    return Difference(frozenset(changed), frozenset(removed))


def _whole(schema: Schema, value: Any, path: Path) -> Iterator[Path]:
    """Paths of a subtree, containers too: the creator of an object owns it."""
    if path:
        yield path
    for element, (below, item) in children(schema, value).items():
        yield from _whole(below, item, (*path, element))


def merge(schema: Schema, live: Any, applied: Any) -> Any:
    """`live` under `applied`: fields merge by name, keyed items by key, sets join, other values are replaced."""
    kind = shape(schema, applied)
    if kind is MergeShape.LEAF or shape(schema, live) is not kind:
        return applied
    if kind is MergeShape.FIELDS:
        over = {
            field: merge(field_schema(schema, field) or {}, live.get(field), item) for field, item in applied.items()
        }
        return {**live, **over}
    before, after = children(schema, live), children(schema, applied)
    order = after if before.keys() <= after.keys() else before | after
    return [
        merge(order[element][0], before[element][1], after[element][1])
        if element in before and element in after
        else order[element][1]
        for element in order
    ]


def remove(schema: Schema, value: Any, gone: FieldSet, kept: FieldSet) -> Any:
    """`value` without the paths in `gone`, and without containers above that become empty, except in `kept`."""
    touched = with_parents(gone)

    def walk(schema: Schema, value: Any, path: Path) -> Any:
        kind = shape(schema, value)
        if path not in touched or kind is MergeShape.LEAF:
            return value
        left: dict[str, Any] = {}
        for element, (below, item) in children(schema, value).items():
            inner = (*path, element)
            if inner in gone:
                continue
            rest = walk(below, item, inner)
            if inner in touched and rest in ({}, []) and item not in ({}, []) and inner not in kept:
                continue
            left[element] = rest
        if kind is MergeShape.FIELDS:
            return {element[2:]: item for element, item in left.items()}
        return list(left.values())

    return walk(schema, value, ())


def with_parents(paths: Iterable[Path]) -> FieldSet:
    """The paths and every container above them."""
    return frozenset(path[:length] for path in paths for length in range(len(path) + 1))


def to_v1(paths: FieldSet) -> Json:
    """The nested `fieldsV1` object: `.` marks a container as a member."""
    root: Json = {}
    for path in sorted(paths):
        node = root
        for element in path:
            node = node.setdefault(element, {})
        node["."] = {}
    return {element: _without_lone_dots(node) for element, node in root.items() if element != "."}


def from_v1(fields: Json) -> FieldSet:
    """Inverse of `to_v1`."""
    return frozenset(_members(fields, ()))


def _members(node: Json, path: Path) -> Iterator[Path]:
    if path and (not node or "." in node):
        yield path
    for element, below in node.items():
        if element != ".":
            yield from _members(below, (*path, element))


def _without_lone_dots(node: Json) -> Json:
    if set(node) == {"."}:
        return {}
    return {element: {} if element == "." else _without_lone_dots(below) for element, below in node.items()}


def readable(path: Path) -> str:
    """`.spec.containers[name="engine"].image`: the path as messages show it."""
    text = ""
    for element in path:
        kind, _, rest = element.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            keys = ",".join(f"{name}={json.dumps(value)}" for name, value in json.loads(rest).items())
            text += f"[{keys}]"
        else:
            text += f"[={rest}]"
    return text


def _key(schema: Schema, item: Json) -> str:
    properties = schema.get("items", {}).get("properties", {})
    names = sorted(schema.get("x-kubernetes-list-map-keys", ()))
    key = {name: item.get(name, properties.get(name, {}).get("default")) for name in names}
    return "k:" + json.dumps({name: value for name, value in key.items() if value is not None}, separators=(",", ":"))
