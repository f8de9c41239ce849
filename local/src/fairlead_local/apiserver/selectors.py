"""Label and field selectors as query strings carry them, and the JSONPaths of printer columns and scale subresources:
parsed once, then applied to objects."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fairlead_local.apiserver.status import Json, bad_request

_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
KEY = re.compile(rf"(?:[a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}")
VALUE = re.compile(rf"(?:{_NAME})?")
_COMMA = re.compile(r",(?![^()]*\))")
"""Outside of parentheses."""
_SET = re.compile(r"(?P<key>\S+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_FIELD = re.compile(r"\s*(?P<path>[^=!\s]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^=!]*?)\s*")
_EQUALITY = re.compile(r"(?P<key>[^=!\s]+)\s*(?P<operator>==|=|!=)\s*(?P<value>\S*)")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term: `operator` is `in`, `notin`, `exists` or `absent`; `values` is empty for the last two."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        is_present = self.key in labels
        match self.operator:
            case "exists":
                return is_present
            case "absent":
                return not is_present
            case "in":
                return is_present and labels[self.key] in self.values
            case _:
                return not is_present or labels[self.key] not in self.values


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements must hold; none selects everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        return all(requirement.matches(labels or {}) for requirement in self.requirements)


def parse_labels(text: str | None) -> LabelSelector:
    """Parses `a=b,c!=d,e in (f,g),h,!i`; raises a 400 with the whole selector for bad syntax."""
    whole = text or ""
    return LabelSelector(tuple(_label_term(term.strip(), whole) for term in _COMMA.split(whole) if whole.strip()))


def from_object(selector: Mapping[str, Any] | None) -> LabelSelector:
    """The `LabelSelector` of a workload's spec: `matchLabels` and `matchExpressions`."""
    operators = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}
    labels = [Requirement(k, "in", frozenset([v])) for k, v in ((selector or {}).get("matchLabels") or {}).items()]
    expressions = [
        Requirement(term["key"], operators[term["operator"]], frozenset(term.get("values") or ()))
        for term in (selector or {}).get("matchExpressions") or ()
    ]
    return LabelSelector((*labels, *expressions))


EVERY_LABEL = LabelSelector()
"""Selects everything."""


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Equality on a few named fields; an absent field compares as the empty string."""

    requirements: tuple[Requirement, ...] = ()
    """Of operators `in` and `notin`, each with one value."""

    def matches(self, obj: Json) -> bool:
        return all(each.matches({each.key: _field(obj, each.key)}) for each in self.requirements)


EVERY_FIELD = FieldSelector()
"""Selects everything."""


def parse_fields(text: str | None, allowed: Callable[[str], bool]) -> FieldSelector:
    """Parses `metadata.name=x,status.phase!=Running`; a field that `allowed` refuses, or bad syntax, raises a 400."""
    requirements = []
    for term in filter(str.strip, (text or "").split(",")):
        found = _FIELD.fullmatch(term)
        if not found:
            raise bad_request(f"invalid selector: '{term}'; can't understand '{term}'")
        if not allowed(found["path"]):
            raise bad_request(f'field label not supported: "{found["path"]}"')
        operator = "notin" if found["operator"] == "!=" else "in"
        requirements.append(Requirement(found["path"], operator, frozenset([found["value"]])))
    return FieldSelector(tuple(requirements))


def _label_term(term: str, whole: str) -> Requirement:
    if found := _SET.fullmatch(term):
        values = frozenset(value.strip() for value in found["values"].split(","))
        requirement = Requirement(found["key"], found["operator"], values)
    elif found := _EQUALITY.fullmatch(term):
        operator = "notin" if found["operator"] == "!=" else "in"
        requirement = Requirement(found["key"], operator, frozenset([found["value"]]))
    elif term.startswith("!"):
        requirement = Requirement(term[1:].strip(), "absent")
    else:
        requirement = Requirement(term, "exists")
    if not KEY.fullmatch(requirement.key):
        raise bad_request(f'unable to parse requirement: <nil>: Invalid value: "{requirement.key}" in "{whole}"')
    for value in requirement.values:
        if not VALUE.fullmatch(value):
            raise bad_request(f'unable to parse requirement: values: Invalid value: "{value}" in "{whole}"')
    return requirement


def _field(obj: Json, path: str) -> str:
    value = find(obj, f".{path}")
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


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
