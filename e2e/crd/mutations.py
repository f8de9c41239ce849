"""Specs that are nearly valid: a valid one with a few fields changed, removed or made up, as its schema suggests."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from api_schemas import spec_schema
from hypothesis import strategies as st

from crd.cases import FULL

Json = dict[str, Any]
Path = tuple[str | int, ...]

_TEXTS = (
    "",
    *(" ", "a", "0", "x" * 40, "é", "a\n", "5m", "0s", "1.5h", "2Gi", "500m", "1e3", "demo://dinghy", "pvc://a/.."),
)
_NUMBERS = (-1, 0, 1, 2, 1.5, 2.0, 100, 2**31 - 1, 2**31, 2**63, -(2**31) - 1)
_anything = st.one_of(
    st.sampled_from(_TEXTS),
    st.sampled_from(_NUMBERS),
    st.sampled_from((None, True, False, [], {}, [None], ["a", "a"], {"a": None}, {"a": 1}, {"name": "A"})),
    st.text(max_size=6),
    st.integers(-(2**33), 2**33),
)


@st.composite
def mutated_specs(draw: st.DrawFn) -> Json:
    """The spec of `cases.FULL`, or a part of it, with up to three mutations."""
    spec: Json = deepcopy(FULL["spec"])
    for name in draw(st.sets(st.sampled_from([name for name in spec if name != "model"]))):
        del spec[name]
    for _ in range(draw(st.integers(1, 3))):
        if not (paths := _paths(spec)):
            break
        path = draw(st.sampled_from(paths))
        change = draw(st.sampled_from((_replace, _replace, _replace, _remove, _invent)))
        change(draw, spec, path, _schema_at(spec_schema(), path))
    return spec


def _replace(draw: st.DrawFn, spec: Json, path: Path, schema: Json) -> None:
    parent = _at(spec, path[:-1])
    parent[path[-1]] = deepcopy(draw(st.one_of(_near(schema), _anything)))


def _remove(draw: st.DrawFn, spec: Json, path: Path, schema: Json) -> None:
    del _at(spec, path[:-1])[path[-1]]


def _invent(draw: st.DrawFn, spec: Json, path: Path, schema: Json) -> None:
    """A field that the schema does not know, or an item twice."""
    found = _at(spec, path)
    if isinstance(found, dict):
        found[draw(st.sampled_from(("typo", "metadata", "kind", "status", "a.b")))] = deepcopy(draw(_anything))
    elif isinstance(found, list):
        found.append(deepcopy(found[0]) if found else None)


def _near(schema: Json) -> st.SearchStrategy[Any]:
    """Values at the limits that a schema sets, on both sides of them."""
    near: list[Any] = list(schema.get("enum", ()))
    for limit in ("minimum", "maximum"):
        if limit in schema:
            near += [schema[limit] - 1, schema[limit], schema[limit] + 1]
    for limit, make in _SIZES.items():
        if limit in schema:
            near += [make(schema[limit]), make(schema[limit] + 1)]
    return st.sampled_from(near) if near else _anything


_SIZES: Mapping[str, Callable[[int], Any]] = {
    "minLength": lambda size: "a" * size,
    "maxLength": lambda size: "a" * size,
    "maxItems": lambda size: [f"a{number}" for number in range(size)],
    "maxProperties": lambda size: {f"a{number}": "1" for number in range(size)},
}


def _paths(value: Any, path: Path = ()) -> list[Path]:
    """Every place in a value, but for the value itself."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in items for found in ((*path, key), *_paths(item, (*path, key)))]


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _schema_at(schema: Json, path: Path) -> Json:
    """The schema of a place; an empty one where none is known."""
    for step in path:
        if isinstance(step, int):
            schema = schema.get("items") or {}
        else:
            others = schema.get("additionalProperties")
            rest = others if isinstance(others, dict) else {}
            schema = (schema.get("properties") or {}).get(step, rest)
    return schema
