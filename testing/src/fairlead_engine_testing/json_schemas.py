"""JSON schemas by chance, in the shapes that people send: nested objects, enumerations, bounds, patterns, unions."""

import random
from typing import Any

_PATTERNS = ("^[a-z]{2,5}$", "^\\d{3}-\\d{4}$", "^(yes|no)$", "^[A-Z][a-z]*$", "^#[0-9a-f]{6}$")
_FORMATS = ("date", "date-time", "time", "uuid", "email", "ipv4", "uri", "duration")
_NAMES = ("id", "name", "kind", "size", "tags", "Größe", "a b", "x-y", 'quo"te', "items", "type", "0", "日本")


def random_schema(draw: random.Random, depth: int = 3) -> dict[str, Any]:
    """Small enough that an answer of some hundred tokens ends; every keyword in it is supported."""
    if depth == 3 and draw.random() < 0.3:
        inner = random_schema(draw, 1)
        return {**_object(draw, 2, [{"$ref": "#/$defs/part"}]), "$defs": {"part": inner}}
    kinds = [_string, _number, _enum, _const, _boolean]
    if depth:
        kinds += [_object, _object, _array, _any_of, _all_of, _one_of, _tuple]
    return draw.choice(kinds)(draw, depth - 1)


def _string(draw: random.Random, depth: int) -> dict[str, Any]:
    match draw.randrange(4):
        case 0:
            return {"type": "string", "pattern": draw.choice(_PATTERNS)}
        case 1:
            return {"type": "string", "format": draw.choice(_FORMATS)}
        case _:
            least = draw.randint(0, 3)
            return {"type": "string", "minLength": least, "maxLength": least + draw.randint(0, 6)}


def _number(draw: random.Random, depth: int) -> dict[str, Any]:
    least = draw.choice([-1000, -7, 0, 1, 99])
    schema: dict[str, Any] = {"type": draw.choice(["integer", "integer", "number"]), "minimum": least}
    schema[draw.choice(["maximum", "exclusiveMaximum"])] = least + draw.randint(6, 500)
    if schema["type"] == "integer" and draw.random() < 0.3:
        schema["multipleOf"] = draw.choice([2, 5])
    return schema


def _enum(draw: random.Random, depth: int) -> dict[str, Any]:
    return {
        "enum": draw.sample(["red", "blue", 1, 2.5, None, True, 'a"b', {"x": 1}, [1, 2], "Grün"], draw.randint(1, 5))
    }


def _const(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"const": draw.choice(["v1", 7, False, None, {"k": [1]}])}


def _boolean(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"type": draw.choice(["boolean", "null", ["boolean", "null"]]), "description": "whether", "title": "T"}


def _object(draw: random.Random, depth: int, more: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    names = draw.sample(_NAMES, draw.randint(0, 4))
    properties = {name: random_schema(draw, depth) for name in names}
    properties |= {f"part{number}": each for number, each in enumerate(more or [])}
    required = [name for name in properties if draw.random() < 0.6]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if not properties:
        schema["additionalProperties"] = {"type": "integer", "minimum": 0, "maximum": 9}
        schema["maxProperties"] = 3
    return schema


def _array(draw: random.Random, depth: int) -> dict[str, Any]:
    least = draw.randint(0, 2)
    return {
        "type": "array",
        "items": random_schema(draw, depth),
        "minItems": least,
        "maxItems": least + draw.randint(0, 2),
    }


def _tuple(draw: random.Random, depth: int) -> dict[str, Any]:
    items = [random_schema(draw, depth) for _ in range(draw.randint(1, 3))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _any_of(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [random_schema(draw, depth) for _ in range(draw.randint(2, 3))]}


def _one_of(draw: random.Random, depth: int) -> dict[str, Any]:
    """Told apart by a property, as serialisers of unions write it."""
    kinds = draw.sample(["cat", "dog", "eel"], 2)
    schemas = [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, "of": random_schema(draw, depth)},
            "required": ["kind"],
            "additionalProperties": False,
        }
        for kind in kinds
    ]
    return {"oneOf": schemas, "discriminator": {"propertyName": "kind"}}


def _all_of(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"allOf": [{"type": "integer", "minimum": draw.randint(0, 5)}, {"maximum": draw.randint(20, 60)}]}


UNSUPPORTED: dict[str, dict[str, Any]] = {
    "not": {"not": {"type": "string"}},
    "if": {"if": {"type": "string"}, "then": {"maxLength": 3}},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": {"type": "integer"}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "propertyNames": {"type": "object", "propertyNames": {"minLength": 2}},
    "unevaluatedProperties": {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
    "$dynamicRef": {"$dynamicRef": "#a"},
    "format": {"type": "string", "format": "colour"},
    "pattern": {"type": "string", "pattern": "^(?=a)b"},
    "oneOf": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]},
    "$ref": {"$ref": "#/$defs/nowhere"},
    "type": {"type": ["string", "text"]},
}
"""Schemas that cannot be kept to, by the keyword that is why."""
