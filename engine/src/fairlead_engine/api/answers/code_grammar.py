"""Grammars of arguments that are written as code: `city="Oslo", days=[1, 2]`."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fairlead_engine.api.answers.code_calls import Code
from fairlead_engine.api.answers.tagged_calls import kinds_of

_MOST_NESTED = 8
"""Depth of a schema's parts that are enforced."""
_INTEGER, _NUMBER = "/-?(0|[1-9][0-9]{0,15})/", r"/-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?/"
_WORD = "/[A-Za-z0-9_-]{1,64}/"
_WORDS: Mapping[str, str] = {"boolean": '("true" | "false")', "null": '"null"'}


class Rules(Protocol):
    """Rules of a grammar."""

    def rule(self, name: str, expression: str) -> str:
        """Adds a rule; returns the name."""

    def literal(self, text: str) -> str:
        """An expression of exactly this text."""

    def text_of(self, number: str, part: Any, end: str) -> str:
        """An expression of a text that the schema `part` allows, and its end."""


class CodeGrammar:
    """Rules of one function's arguments."""

    def __init__(self, rules: Rules, code: Code, schema: Mapping[str, Any], name: str) -> None:
        """`schema`: of all arguments. `name`: unique among the grammar's functions."""
        self._rules, self._code, self._schema, self._name = rules, code, schema, name
        self._num_rules = 0

    def arguments(self) -> str:
        """An expression of the arguments, without brackets."""
        return self._fields(self._schema, self._code.assign, 0)

    def _rule(self, expression: str, kind: str = "code") -> str:
        self._num_rules += 1
        return self._rules.rule(f"{kind}_{self._name}_{self._num_rules}", expression)

    def _fields(self, schema: Mapping[str, Any], assign: str, depth: int) -> str:
        """An expression of names with values, in the schema's order."""
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        between = self._rules.literal(self._code.between)
        if not properties:
            if schema.get("additionalProperties") is False:
                return '""'
            any_field = f"{self._rule(_WORD, 'WORD')} {self._rules.literal(assign)} {self._value({}, _MOST_NESTED)}"
            return f"({self._rule(any_field)} ({between} {any_field})*)?"
        fields = [
            self._rule(f"{self._rules.literal(name + assign)} {self._value(part, depth)}")
            for name, part in properties.items()
        ]
        return _in_order(fields, [name in required for name in properties], between, self._rule)

    def _value(self, part: Any, depth: int) -> str:
        """An expression of a value."""
        code = self._code
        if not code.escapes:
            return self._typed(part, depth)
        schema = {name: self._schema[name] for name in ("$defs", "definitions", "x-guidance") if name in self._schema}
        return self._rule("%json " + json.dumps({**schema, **part} if isinstance(part, dict) else part))

    def _typed(self, part: Any, depth: int) -> str:
        """An expression of a value with texts in the syntax's own quotes. Texts are restricted by `enum` and length,
        other values by type."""
        kinds = kinds_of(part, self._schema) if depth < _MOST_NESTED else set()
        if not kinds:
            return self._any()
        each = [self._of_kind(kind, part if isinstance(part, dict) else {}, depth) for kind in sorted(kinds)]
        return each[0] if len(each) == 1 else f"({' | '.join(each)})"

    def _of_kind(self, kind: str, part: Mapping[str, Any], depth: int) -> str:
        quote = self._code.quotes[0]
        if kind == "string":
            self._num_rules += 1
            name = f"{self._name}_{self._num_rules}"
            return f"{self._rules.literal(quote)} {self._rules.text_of(name, part, quote)}"
        if kind == "integer":
            return self._rule(_INTEGER, "NUMBER")
        if kind == "number":
            return self._rule(_NUMBER, "NUMBER")
        if kind == "array":
            item, between = self._value(part.get("items", {}), depth + 1), self._rules.literal(self._code.between)
            return f'"[" ({item} ({between} {item})*)? "]"'
        if kind == "object":
            return f'"{{" {self._fields(part, ":", depth + 1)} "}}"'
        return _WORDS[kind]

    def _any(self) -> str:
        """An expression of any value, without objects in others."""
        text, number = self._of_kind("string", {}, 0), self._of_kind("number", {}, 0)
        one = self._rule(" | ".join([text, number, *_WORDS.values()]))
        return f'({one} | "[" ({one} ({self._rules.literal(self._code.between)} {one})*)? "]")'


def _in_order(fields: Sequence[str], are_required: Sequence[bool], between: str, rule: Callable[[str], str]) -> str:
    """An expression of fields, some of which may be left out, with separators between."""
    behind = [""]
    """Expression of the fields from the last one on, each behind a separator; by the number of fields."""
    for field, is_required in zip(reversed(fields), reversed(are_required), strict=True):
        each = f"{between} {field}" if is_required else f"({between} {field})?"
        behind.append(rule(f"{each} {behind[-1]}"))
    firsts = []
    for place, (field, is_required) in enumerate(zip(fields, are_required, strict=True)):
        firsts.append(f"{field} {behind[len(fields) - place - 1]}".strip())
        if is_required:
            return f"({' | '.join(firsts)})"
    return f"({' | '.join(firsts)})?"
