"""CEL rules of a CRD, evaluated the way a Kubernetes API server does.

Who calls it: `structural.check_rules`. Rules come in as text and are compiled once per process.
"""

import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import celpy
from celpy import celtypes
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError

CelProgram = celpy.Runner


class InvalidRule(ValueError):
    """A rule's text is not CEL that can be evaluated here."""


@lru_cache(maxsize=1024)
def compile_rule(rule: str) -> CelProgram:
    """Raises InvalidRule for a text that is not CEL."""
    limit = sys.getrecursionlimit()
    environment = celpy.Environment()
    sys.setrecursionlimit(limit)  # celpy raises the whole process's limit; our rules are nowhere near it
    try:
        return environment.program(environment.compile(rule))
    except CELParseError as e:
        raise InvalidRule(f"{rule!r} is not a CEL expression: {e.args[0]}") from e


def holds(rule: str, value: Any, old_value: Any = None) -> bool:
    """Whether the rule is true of `self` = `value` (and `oldSelf`), both converted by `to_cel`.

    Raises InvalidRule when it is no expression, or when it has no value for this object.
    """
    program = compile_rule(rule)
    variables = {"self": value} | ({} if old_value is None else {"oldSelf": old_value})
    try:
        return bool(program.evaluate(variables))
    except (CELEvalError, TypeError, ValueError) as e:
        raise InvalidRule(f"{rule!r} cannot be evaluated: {e.args[0] if e.args else e}") from e


def to_cel(schema: Mapping[str, Any], value: Any) -> Any:
    """JSON to CEL values, as `schema` types them: where it says number, 1 is a double."""
    if isinstance(value, Mapping):
        properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
        rest = others if isinstance(others, Mapping) else {}
        pairs = {celtypes.StringType(k): to_cel(properties.get(k, rest), v) for k, v in value.items() if v is not None}
        return celtypes.MapType(pairs)
    if isinstance(value, (list, tuple)):
        return celtypes.ListType([to_cel(schema.get("items") or {}, item) for item in value])
    if isinstance(value, bool):
        return celtypes.BoolType(value)
    if isinstance(value, str):
        return celtypes.StringType(value)
    if isinstance(value, float) or (isinstance(value, int) and _is_double(schema, value)):
        return celtypes.DoubleType(value)
    return celtypes.IntType(value) if isinstance(value, int) else None


def _is_double(schema: Mapping[str, Any], value: int) -> bool:
    """API servers decode what does not fit into 64 bits as a double, whatever its schema says."""
    return schema.get("type") == "number" or not -(2**63) <= value < 2**63
