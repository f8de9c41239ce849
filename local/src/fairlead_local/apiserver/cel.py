"""CEL rules of a CRD, evaluated the way a Kubernetes API server does.

Called by `admission` for every object and by `definitions` for every CRD. Rules are compiled once per process.
"""

import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import celpy
from celpy import celtypes
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError

from fairlead.api.schema import join
from fairlead_local.apiserver.status import Violation, invalid_value
from fairlead_local.apiserver.structural import Schema, field_schema, is_unchanged, old_items, quoted

CelProgram = celpy.Runner
RULES = "x-kubernetes-validations"
_LEVELS = {"expr", "conditionalor", "conditionaland", "relation", "addition", "multiplication", "unary"}
"""Nodes of celpy's grammar that with one child have that child's value."""


class InvalidRule(ValueError):
    """A rule's text is not CEL that can be evaluated here."""


def check_rules(schema: Schema, value: Any, old: Any = None, path: str = "") -> list[Violation]:
    """Every CEL rule that `value` breaks. `old`: the value before an update, for rules with oldSelf; other rules do not
    apply to unchanged parts of an update.

    `value` must have no `BLOCKING` violations of `validate`. A rule that cannot be evaluated counts as broken.
    """
    return list(_broken_rules(schema, value, old, path, is_kept=False))


def compile_rules(schema: Schema, path: str = "") -> None:
    """Raises InvalidRule, naming the place, when a rule anywhere in the schema cannot be understood."""
    for rule in schema.get(RULES) or []:
        try:
            compile_rule(rule["rule"])
        except InvalidRule as e:
            raise InvalidRule(f"{path or '<root>'}: {e}") from e
    for name, child in (schema.get("properties") or {}).items():
        compile_rules(child, join(path, name))
    for child in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(child, Mapping):
            compile_rules(child, f"{path}[*]")


@lru_cache(maxsize=1024)
def compile_rule(rule: str) -> CelProgram:
    """Raises InvalidRule for a text that is not CEL."""
    limit = sys.getrecursionlimit()
    environment = celpy.Environment()
    sys.setrecursionlimit(limit)  # celpy raises the whole process's limit; our rules are nowhere near it
    try:
        return environment.program(_without_levels(environment.compile(rule)))
    except CELParseError as e:
        raise InvalidRule(f"{rule!r} is not a CEL expression: {e.args[0]}") from e


def _without_levels(tree: Any) -> Any:
    """The same `celpy.Expression` without the grammar's levels at which nothing happens. celpy visits each of them at
    every evaluation, and `self.replicas` has seven: they took a third of the time that an object's rules take."""
    tree.children = [_without_levels(each) if isinstance(each, celpy.Expression) else each for each in tree.children]
    if tree.data in _LEVELS and len(tree.children) == 1:
        return tree.children[0]
    return tree


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
        known = {name: item for name, item in value.items() if item is not None}
        return celtypes.MapType(
            {celtypes.StringType(k): to_cel(field_schema(schema, k) or {}, v) for k, v in known.items()}
        )
    if isinstance(value, (list, tuple)):
        return celtypes.ListType([to_cel(schema.get("items") or {}, item) for item in value])
    if isinstance(value, bool):
        return celtypes.BoolType(value)
    if isinstance(value, str):
        return celtypes.StringType(value)
    # API servers decode integers above 64 bits as doubles, under any schema.
    is_long = isinstance(value, int) and not -(2**63) <= value < 2**63
    if isinstance(value, float) or is_long or (isinstance(value, int) and schema.get("type") == "number"):
        return celtypes.DoubleType(value)
    return celtypes.IntType(value) if isinstance(value, int) else None


def _broken_rules(schema: Schema, value: Any, old: Any, path: str, *, is_kept: bool) -> Iterator[Violation]:
    """`is_kept`: whether an enclosing value is unchanged by the update."""
    if value is None:
        return
    is_kept = is_kept or (old is not None and is_unchanged(schema, value, old))
    rules = [rule for rule in schema.get(RULES) or [] if not is_kept or "oldSelf" in rule["rule"]]
    if rules:
        converted = to_cel(schema, value)
        before = to_cel(schema, old) if old is not None else None
        for rule in rules:
            if "oldSelf" in rule["rule"] and before is None:
                continue
            broken = str(rule.get("message") or f"failed rule: {rule['rule']}").strip()
            try:
                if holds(rule["rule"], converted, before):
                    continue
            except InvalidRule as e:
                broken = str(e)
            shown = "" if isinstance(value, (Mapping, list)) else f"{quoted(value)}: "
            yield invalid_value(path, f"{shown}{broken}")
    for child_schema, child, old_child, child_path in _children(schema, value, old, path):
        yield from _broken_rules(child_schema, child, old_child, child_path, is_kept=is_kept)


def _children(schema: Schema, value: Any, old: Any, path: str) -> Iterator[tuple[Schema, Any, Any, str]]:
    """Schema, value, old value and path of everything directly below."""
    if isinstance(value, Mapping):
        before, properties = old if isinstance(old, Mapping) else {}, schema.get("properties") or {}
        for name, item in value.items():
            if (child := field_schema(schema, name)) is not None:
                yield child, item, before.get(name), join(path, name) if name in properties else f"{path}[{name}]"
    elif isinstance(value, list):
        items = schema.get("items") or {}
        for index, (item, old_item) in enumerate(zip(value, old_items(schema, value, old), strict=True)):
            yield items, item, old_item, f"{path}[{index}]"
