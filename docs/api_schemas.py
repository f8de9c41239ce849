"""From typed Python to OpenAPI: what a dataclass of `fairlead.api` looks like as a structural schema of Kubernetes."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, get_args, get_origin

from fairlead.api import rules
from fairlead.api.llmdeployment import LLMDeploymentSpec
from fairlead.api.quantities import DURATION_PATTERN, QUANTITY_PATTERN
from fairlead.api.schema import (
    MAX_NOTATION_LENGTH,
    Constraints,
    Notation,
    Rule,
    api_fields,
    camel,
    descriptions,
    unwrap,
)

JsonSchema = dict[str, Any]


@cache
def spec_schema() -> JsonSchema:
    """The structural schema of an LLMDeployment's `spec`. Do not change the result."""
    return schema_of(LLMDeploymentSpec) | validations(rules.SPEC)


def schema_of(cls: type) -> JsonSchema:
    """The structural schema of an API dataclass, with descriptions."""
    fields, texts = api_fields(cls), descriptions(cls)
    properties = {
        item.key: {"description": texts[item.key]} | _value_schema(item.type, item.constraints) for item in fields
    }
    required = [item.key for item in fields if item.default is MISSING]
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


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
