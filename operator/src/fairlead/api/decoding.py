"""From JSON to the dataclasses of `api/`: every value is checked against its field's type and constraints as it is
decoded. Refusals are worded as Kubernetes words them.

Who calls it: `LLMDeployment.from_body`, and the operator's settings file. Rules between fields are in `rules`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, is_dataclass
from enum import StrEnum
from typing import Any, TypeVar, cast, get_args, get_origin

from fairlead.api.cel import matches
from fairlead.api.durations import DURATION_PATTERN, parse_duration
from fairlead.api.quantities import QUANTITY_PATTERN, parse_bytes
from fairlead.api.schema import MAX_NOTATION_LENGTH, Constraints, Notation, api_fields, join, unwrap

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
    """`raw` as `cls`. A null counts as absent; an unknown field is left out, or with `strict` refused.

    Raises InvalidValue for the first value that does not fit, UnknownField for the first unknown field.
    """
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
    """Whether a decoded JSON value is an integer to an API server: of 64 bits, or a double that is exactly one."""
    if isinstance(value, float):
        return value.is_integer() and abs(value) < 2**53
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def nests_deeper(value: Any, depth: int) -> bool:
    """Whether lists and objects are in one another more than so many times."""
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
