"""From JSON to the dataclasses of `api/`. What arrives here has passed `structural.validate`; nothing is checked
twice."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import StrEnum
from typing import Any, TypeVar, get_args, get_origin

from fairlead.api.durations import parse_duration
from fairlead.api.quantities import parse_bytes
from fairlead.api.schema import Constraints, Notation, api_fields, unwrap

T = TypeVar("T")


def decode(cls: type[T], raw: Mapping[str, Any]) -> T:
    """`raw`, which is valid for the schema of `cls`, as `cls`. Unknown fields are left out, null counts as absent."""
    return cls(**_values(cls, raw))


def _values(cls: Any, raw: Mapping[str, Any]) -> dict[str, Any]:
    present = (item for item in api_fields(cls) if raw.get(item.key) is not None)
    return {item.name: _value(item.type, item.constraints, raw[item.key]) for item in present}


def _value(bare: Any, constraints: Constraints, raw: Any) -> Any:
    match constraints.notation:
        case Notation.DURATION:
            return parse_duration(raw)
        case Notation.BYTES:
            return parse_bytes(raw)
        case Notation.QUANTITY:
            return {name: str(quantity) for name, quantity in raw.items()}
        case Notation.RAW:
            return raw
    origin = get_origin(bare)
    if origin is tuple:
        item, item_constraints = unwrap(get_args(bare)[0])
        return tuple(_value(item, item_constraints, each) for each in raw)
    if origin is not None and issubclass(origin, Mapping):
        value, value_constraints = unwrap(get_args(bare)[1])
        return {name: _value(value, value_constraints, each) for name, each in raw.items()}
    if is_dataclass(bare):
        assert isinstance(bare, type)
        return decode(bare, raw)
    if issubclass(bare, StrEnum):
        return bare(raw)
    return int(raw) if bare is int else raw  # 2.0 is a whole number in JSON
