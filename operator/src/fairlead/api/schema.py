"""What the types of `api/` say of each field: how it is written, within which limits, and what it is for.

Descriptions are the docstrings below the fields, so the API's documentation has one source. No values here
(`decoding`); the CRD and `docs/reference/` are made of it (`docs/api_schemas.py`).
"""

import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from fairlead.api.cel import compile_rule
from fairlead.api.durations import format_duration
from fairlead_protocol.docstrings import docstrings

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
    """A rule across the fields of one value, as API servers evaluate it."""

    rule: str
    """CEL; `self` is the value."""
    message: str
    """What is wrong, in a sentence the user can act on, with field names as they are written under `spec`."""

    def holds(self, value: Any) -> bool:
        """Whether it is so of a JSON value, whose types and limits fit."""
        return bool(compile_rule(self.rule)({"self": value}))


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


@cache
def descriptions(cls: Any) -> Mapping[str, str]:
    """What each field of an API dataclass is for, with its default, by its name in JSON. Empty = it has no text."""
    texts, found = docstrings(cls), {}
    for item in api_fields(cls):
        default, said = item.default, item.constraints.default_text
        if said is None and default not in (MISSING, None, (), {}) and not is_dataclass(default):
            is_duration = item.constraints.notation is Notation.DURATION
            said = format_duration(default) if is_duration else str(default)
            said = said.lower() if isinstance(default, bool) else said
        found[item.key] = " ".join(filter(None, (texts.get(item.name), said and f"Default: {said}.")))
    return found


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
