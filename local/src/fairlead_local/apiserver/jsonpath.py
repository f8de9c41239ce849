"""The JSONPath that printer columns and scale paths use: fields, indexes, and filters by equality."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fairlead_local.apiserver.status import Json

_STEP = re.compile(
    r"""\.(?P<field>(?:\\.|[^.\[\]\\])+)"""
    r"""|\[(?P<index>-?\d+|\*)\]"""
    r"""|\[(?P<quote>['"])(?P<quoted>.*?)(?P=quote)\]"""
    r"""|\[\?\(\s*@\.(?P<key>[\w.]+)\s*==\s*(?P<mark>['"])(?P<value>.*?)(?P=mark)\s*\)\]"""
)


@dataclass(frozen=True, slots=True)
class PathStep:
    """One of: a `field`, an `index` (None in a list means all), or a filter `key == value`."""

    field: str | None = None
    index: str | None = None
    key: str | None = None
    value: str | None = None


@lru_cache(maxsize=512)
def parse(path: str) -> tuple[PathStep, ...]:
    """Parses `.a.b[0]`, `.c[?(@.type=="Ready")].status`; raises ValueError for anything else."""
    text = path.strip().removeprefix("{").removesuffix("}")
    steps, position = [], 0
    while position < len(text):
        found = _STEP.match(text, position)
        if not found:
            raise ValueError(f"unsupported JSONPath {path!r} at {text[position:]!r}")
        field = found["field"] if found["field"] is not None else found["quoted"]
        unescaped = re.sub(r"\\(.)", r"\1", field) if field is not None else None
        steps.append(PathStep(unescaped, found["index"], found["key"], found["value"]))
        position = found.end()
    return tuple(steps)


def find(obj: Json, path: str) -> Any:
    """The first value at `path`, None when there is none."""
    values: list[Any] = [obj]
    for step in parse(path):
        values = [found for value in values for found in _apply(value, step)]
    return values[0] if values else None


def place(obj: Json, path: str, value: Any) -> None:
    """Sets the value at a path that `is_plain`, creating the objects on the way."""
    *parents, last = [step.field or "" for step in parse(path)]
    for field in parents:
        obj = obj.setdefault(field, {})
    obj[last] = value


def is_plain(path: str) -> bool:
    """Whether the path consists of fields only, as scale paths must."""
    try:
        steps = parse(path)
    except ValueError:
        return False
    return bool(steps) and all(step.field is not None for step in steps)


def _apply(value: Any, step: PathStep) -> list[Any]:
    if step.field is not None:
        return [value[step.field]] if isinstance(value, dict) and step.field in value else []
    if not isinstance(value, list):
        return []
    if step.key is not None:
        return [item for item in value if isinstance(item, dict) and str(item.get(step.key)) == step.value]
    if step.index == "*":
        return value
    index = int(step.index or 0)
    return [value[index]] if -len(value) <= index < len(value) else []
