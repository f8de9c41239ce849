"""The types of `api/`, field by field: notation, limits and purpose, and decoding of JSON.

Descriptions are the docstrings below the fields, the one source for the CRD and `docs/reference/`
(`docs/api_schemas.py`). `decode` checks every value against its field's type and constraints, and words refusals as
Kubernetes does. Rules between fields are in `rules`.
"""

import json
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from fairlead.api.cel import compile_rule, matches
from fairlead.api.quantities import DURATION_PATTERN, QUANTITY_PATTERN, format_duration, parse_bytes, parse_duration
from fairlead_common.settings import docstrings

MAX_NOTATION_LENGTH = 32
"""Characters of the longest duration or quantity."""


class Notation(StrEnum):
    """Notation of a value, unless it is written as its Python type."""

    PLAIN = "plain"
    DURATION = "duration"
    """A string such as `30s`; seconds (float) in Python."""
    BYTES = "bytes"
    """A quantity such as `2Gi`; whole bytes (int) in Python."""
    QUANTITY = "quantity"
    """A quantity such as `500m`, kept as text for the manifests."""
    RAW = "raw"
    """An object with fields unknown to us, kept unchanged."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule between the fields of one value, as API servers evaluate it."""

    rule: str
    """CEL; `self` is the value."""
    message: str
    """The problem, in a sentence with a remedy, with field names as written under `spec`."""

    def holds(self, value: Any) -> bool:
        """Whether the rule holds of a JSON value of valid type and limits."""
        return bool(compile_rule(self.rule)({"self": value}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Constraints on a field beyond its type; written as `Annotated[T, Constraints(...)]`. None = no constraint."""

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
    """The description's text about a default that depends on something else."""


PLAIN = Constraints()
Seconds = Annotated[float, Constraints(notation=Notation.DURATION)]
"""A duration, in seconds."""
Bytes = Annotated[int, Constraints(notation=Notation.BYTES)]
"""A size, in bytes."""
Quantities = Annotated[Mapping[str, str], Constraints(notation=Notation.QUANTITY, max_items=32)]
"""Resource name → quantity."""
Raw = Annotated[Mapping[str, Any], Constraints(notation=Notation.RAW)]
"""An object of Kubernetes' own, kept unchanged."""


def camel(name: str) -> str:
    """`max_model_len` → `maxModelLen`."""
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


@dataclass(frozen=True, slots=True)
class ApiField:
    """One field of an API dataclass, with its type's constraints."""

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
    """Purpose and default of each field of an API dataclass, by its JSON name. Empty = no text."""
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


T = TypeVar("T")

MAX_DEPTH = 64
"""Of an object that may have any fields. API servers take ten thousand; a pod has a dozen."""


class InvalidValue(ValueError):
    """A value that does not fit its field. `path` is the field (`spec.model.source`), `message` a sentence about it."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


class UnknownField(InvalidValue):
    """A field that does not exist; `known` are those that do at its place."""

    def __init__(self, path: str, known: tuple[str, ...]) -> None:
        super().__init__(path, "is unknown")
        self.known = known


def decode(cls: type[T], raw: Any, path: str = "", *, strict: bool = False) -> T:
    """`raw` as `cls`. Null counts as absent; unknown fields are left out, or with `strict` refused. Raises InvalidValue
    for the first invalid value, UnknownField for the first unknown field."""
    values, items = _mapping(raw, path), api_fields(cast(Any, cls))
    known = tuple(item.key for item in items)
    for key in values if strict else ():
        if key not in known:
            raise UnknownField(join(path, key), known)
    for item in items:
        if item.default is MISSING and values.get(item.key) is None:
            raise InvalidValue(join(path, item.key), "Required value")
    return cls(
        **{
            item.name: _value(item.type, item.constraints, values[item.key], join(path, item.key), strict)
            for item in items
            if values.get(item.key) is not None
        }
    )


def is_whole(value: Any) -> bool:
    """Whether an API server takes a decoded JSON value for an integer: 64 bits, or an exact double."""
    if isinstance(value, float):
        return value.is_integer() and abs(value) < 2**53
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def nests_deeper(value: Any, depth: int) -> bool:
    """Whether lists and objects are nested deeper than `depth`."""
    level = [value]
    for _ in range(depth + 1):
        level = [inner for each in level for inner in _inner(each)]
        if not level:
            return False
    return True


def _inner(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()


def _value(bare: Any, constraints: Constraints, raw: Any, path: str, strict: bool) -> Any:
    match constraints.notation:
        case Notation.DURATION:
            return parse_duration(_text(raw, path, MAX_NOTATION_LENGTH, DURATION_PATTERN))
        case Notation.BYTES:
            try:
                return parse_bytes(_quantity(raw, path))
            except ValueError as e:
                raise InvalidValue(path, f"Invalid value: {_quoted(raw)}: {e}") from e
        case Notation.QUANTITY:
            return {name: _quantity(each, join(path, name)) for name, each in _entries(raw, path, constraints).items()}
        case Notation.RAW:
            if nests_deeper(raw, MAX_DEPTH):
                raise InvalidValue(path, f"Invalid value: it is nested more than {MAX_DEPTH} deep")
            return _mapping(raw, path)
    origin = get_origin(bare)
    if origin is tuple:
        return _items(get_args(bare)[0], constraints, raw, path, strict)
    if origin is not None and issubclass(origin, Mapping):
        value, inner = unwrap(get_args(bare)[1])
        entries = _entries(raw, path, constraints)
        return {name: _value(value, inner, each, join(path, name), strict) for name, each in entries.items()}
    if is_dataclass(bare):
        assert isinstance(bare, type)
        return decode(bare, raw, path, strict=strict)
    if bare is bool:
        return raw if isinstance(raw, bool) else _refuse_type(raw, path, "boolean")
    if bare is int:
        return _integer(raw, path, constraints)
    text = _text(raw, path, constraints.max_length, constraints.pattern, constraints.min_length)
    if issubclass(bare, StrEnum):
        choices = [str(member) for member in bare]
        if text not in choices:
            supported = ", ".join(_quoted(choice) for choice in choices)
            raise InvalidValue(path, f"Unsupported value: {_quoted(text)}: supported values: {supported}")
        return bare(text)
    return text


def _mapping(raw: Any, path: str) -> Mapping[str, Any]:
    return raw if isinstance(raw, Mapping) else _refuse_type(raw, path, "object")


def _entries(raw: Any, path: str, constraints: Constraints) -> dict[str, Any]:
    entries = {name: each for name, each in _mapping(raw, path).items() if each is not None}
    _limit_size(len(entries), path, constraints)
    return entries


def _items(hint: Any, constraints: Constraints, raw: Any, path: str, strict: bool) -> tuple[Any, ...]:
    if not isinstance(raw, list):
        _refuse_type(raw, path, "array")
    _limit_size(len(raw), path, constraints)
    item, inner = unwrap(hint)
    items = tuple(_value(item, inner, each, f"{path}[{index}]", strict) for index, each in enumerate(raw))
    if constraints.list_type in ("set", "map"):
        keys = [{name: each.get(name) for name in constraints.list_map_keys} or each for each in raw]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise InvalidValue(f"{path}[{index}]", f"Duplicate value: {_quoted(key)}")
    return items


def _limit_size(size: int, path: str, constraints: Constraints) -> None:
    if constraints.max_items is not None and size > constraints.max_items:
        raise InvalidValue(path, f"Too many: {size}: must have at most {constraints.max_items} items")


def _text(raw: Any, path: str, longest: int | None, pattern: str | None, shortest: int | None = None) -> str:
    if not isinstance(raw, str):
        _refuse_type(raw, path, "string")
    if longest is not None and len(raw) > longest:
        raise InvalidValue(path, f"Too long: may not be more than {longest} bytes")
    if shortest is not None and len(raw) < shortest:
        _refuse_bounds(raw, path, f"should be at least {shortest} chars long")
    if pattern is not None and not matches(pattern, raw):
        _refuse_bounds(raw, path, f"should match '{pattern}'")
    return str(raw)


def _quantity(raw: Any, path: str) -> str:
    if is_whole(raw):
        return str(int(raw))
    if not isinstance(raw, str):
        _refuse_type(raw, path, "integer,string")
    return _text(raw, path, MAX_NOTATION_LENGTH, QUANTITY_PATTERN)


def _integer(raw: Any, path: str, constraints: Constraints) -> int:
    if not is_whole(raw):
        _refuse_type(raw, path, "integer")
    if constraints.minimum is not None and raw < constraints.minimum:
        _refuse_bounds(raw, path, f"should be greater than or equal to {constraints.minimum}")
    if constraints.maximum is not None and raw > constraints.maximum:
        _refuse_bounds(raw, path, f"should be less than or equal to {constraints.maximum}")
    if not -(2**31) <= raw < 2**31:
        _refuse_bounds(raw, path, "should fit into 32 bits")
    return int(raw)  # 2.0 is a whole number in JSON


_JSON_TYPES = ((bool, "boolean"), (Mapping, "object"), (list, "array"), (str, "string"), (int, "integer"))


def _refuse_type(raw: Any, path: str, wanted: str) -> Any:
    found = next((name for kind, name in _JSON_TYPES if isinstance(raw, kind)), "null" if raw is None else "number")
    sentence = f"Invalid value: {_quoted(found)}: {path} in body must be of type {wanted}: {_quoted(found)}"
    raise InvalidValue(path, sentence)


def _refuse_bounds(raw: Any, path: str, sentence: str) -> None:
    raise InvalidValue(path, f"Invalid value: {_quoted(raw)}: {path} in body {sentence}")


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
