"""From typed Python to OpenAPI: what a dataclass of `api/` looks like as a structural schema of Kubernetes.

Field descriptions are the docstrings below the fields, so the API's documentation has one source. No values here
(`decoding`).
"""

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from fairlead.api.durations import DURATION_PATTERN, format_duration
from fairlead.api.quantities import QUANTITY_PATTERN
from fairlead_protocol.docstrings import docstrings

JsonSchema = dict[str, Any]

MAX_NOTATION_LENGTH = 32
"""Characters of the longest duration or quantity."""


class Notation(StrEnum):
    """How a value is written where it is not written as its Python type."""

    PLAIN = "plain"
    DURATION = "duration"
    """A string such as `30s`; seconds (float) in Python."""
    BYTES = "bytes"
    """A quantity such as `2Gi`; whole bytes (int) in Python."""
    QUANTITY = "quantity"
    """A quantity such as `500m`, kept as its text: it goes into manifests as it is."""
    RAW = "raw"
    """An object whose fields are not ours to know; kept as it is."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule across the fields of one value, as an API server evaluates it and as we do."""

    rule: str
    """CEL; `self` is the value."""
    holds: Callable[[Any], bool]
    """The same of the JSON value, whose types and limits fit."""
    message: str
    """What is wrong, in a sentence the user can act on, with field names as they are written under `spec`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Constraints on a field that its type does not tell; written as `Annotated[T, Constraints(...)]`. None = no
    constraint."""

    notation: Notation = Notation.PLAIN
    minimum: int | None = None
    maximum: int | None = None
    pattern: str | None = None
    min_length: int | None = None
    max_length: int | None = None
    max_items: int | None = None
    """Of a list; of a map, the most entries."""
    list_type: str | None = None
    """Kubernetes' `set`, `map` or `atomic`; None = atomic."""
    list_map_keys: tuple[str, ...] = ()
    """The keys of a list of type `map`."""
    rules: tuple[Rule, ...] = ()
    """Rules on the whole value."""
    default_text: str | None = None
    """What the description says about the default, where it depends on something else."""


PLAIN = Constraints()
Seconds = Annotated[float, Constraints(notation=Notation.DURATION)]
"""A duration, in seconds."""
Bytes = Annotated[int, Constraints(notation=Notation.BYTES)]
"""A size, in bytes."""
Quantities = Annotated[Mapping[str, str], Constraints(notation=Notation.QUANTITY, max_items=32)]
"""Resource name → quantity."""
Raw = Annotated[Mapping[str, Any], Constraints(notation=Notation.RAW)]
"""An object of Kubernetes' own, taken over as it is."""


def camel(name: str) -> str:
    """`max_model_len` → `maxModelLen`."""
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


@dataclass(frozen=True, slots=True)
class ApiField:
    """One field of an API dataclass, with everything its type says."""

    name: str
    """In Python."""
    key: str
    """In JSON."""
    type: Any
    """Without `None` and annotations."""
    constraints: Constraints
    default: Any
    """MISSING where there is none: the field is required."""


@cache
def api_fields(cls: Any) -> tuple[ApiField, ...]:
    """The fields of an API dataclass, in order."""
    hints, found = get_type_hints(cls, include_extras=True), []
    for item in fields(cls):
        bare, constraints = unwrap(hints[item.name])
        default = item.default if item.default_factory is MISSING else item.default_factory()
        found.append(ApiField(item.name, camel(item.name), bare, constraints, default))
    return tuple(found)


def join(path: str, name: str) -> str:
    """The path of a field below `path`."""
    return f"{path}.{name}" if path else name


def schema_of(cls: type) -> JsonSchema:
    """The structural schema of an API dataclass, with descriptions."""
    texts, properties, required = docstrings(cls), {}, []
    for item in api_fields(cls):
        default, said = item.default, item.constraints.default_text
        if default is MISSING:
            required.append(item.key)
        elif said is None and default is not None and default not in ((), {}) and not is_dataclass(default):
            is_duration = item.constraints.notation is Notation.DURATION
            said = format_duration(default) if is_duration else str(default)
            said = said.lower() if isinstance(default, bool) else said
        sentence = " ".join(filter(None, (texts.get(item.name), said and f"Default: {said}.")))
        properties[item.key] = {"description": sentence} | _value_schema(item.type, item.constraints)
    schema: JsonSchema = {"type": "object", "properties": properties}
    return schema | ({"required": required} if required else {})


def unwrap(hint: Any) -> tuple[Any, Constraints]:
    """The bare type and the innermost-to-outermost merged Constraints of `Annotated[T | None, Constraints(...)]`."""
    constraints = PLAIN
    while True:
        if get_origin(hint) is Annotated:
            inner, *marks = get_args(hint)
            for mark in marks:  # what the outer says wins; what it leaves at its default comes from the inner
                said = {item.name: getattr(constraints, item.name) for item in fields(Constraints)}
                outer = {name: value for name, value in said.items() if value != getattr(PLAIN, name)}
                constraints = replace(mark, **outer)
            hint = inner
        elif get_origin(hint) in (Union, types.UnionType):
            (hint,) = (arm for arm in get_args(hint) if arm is not types.NoneType)
        else:
            return hint, constraints


def _value_schema(bare: Any, constraints: Constraints) -> JsonSchema:
    schema = _base_schema(bare, constraints)
    keywords = ("minimum", "maximum", "pattern", "min_length", "max_length")
    named = {camel(name): getattr(constraints, name) for name in keywords}
    named["maxItems" if schema.get("type") == "array" else "maxProperties"] = constraints.max_items
    named["x-kubernetes-list-type"] = constraints.list_type
    named["x-kubernetes-list-map-keys"] = list(constraints.list_map_keys) or None
    return schema | {key: value for key, value in named.items() if value is not None} | validations(constraints.rules)


def validations(rules: Iterable[Rule]) -> JsonSchema:
    """The keyword that has an API server check these rules, if there are any."""
    checked = [{"rule": rule.rule, "message": rule.message} for rule in rules]
    return {"x-kubernetes-validations": checked} if checked else {}


def _base_schema(bare: Any, constraints: Constraints) -> JsonSchema:
    match constraints.notation:
        case Notation.DURATION:
            return {"type": "string", "pattern": DURATION_PATTERN, "maxLength": MAX_NOTATION_LENGTH}
        case Notation.BYTES:
            return _quantity()
        case Notation.QUANTITY:
            return {"type": "object", "additionalProperties": _quantity()}
        case Notation.RAW:
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    origin = get_origin(bare)
    if origin is tuple:
        item, item_constraints = unwrap(get_args(bare)[0])
        return {"type": "array", "items": _value_schema(item, item_constraints)}
    if origin is not None and issubclass(origin, Mapping):
        value, value_constraints = unwrap(get_args(bare)[1])
        return {"type": "object", "additionalProperties": _value_schema(value, value_constraints)}
    if is_dataclass(bare):
        assert isinstance(bare, type)
        return schema_of(bare)
    if issubclass(bare, StrEnum):
        return {"type": "string", "enum": [str(member) for member in bare]}
    if bare is int:
        # Kubernetes goes by the format from 1.35 on.
        return {"type": "integer", "format": "int32", "maximum": 2**31 - 1}
    return {"type": {str: "string", bool: "boolean"}[bare]}


def _quantity() -> JsonSchema:
    return {"x-kubernetes-int-or-string": True, "pattern": QUANTITY_PATTERN, "maxLength": MAX_NOTATION_LENGTH}
