"""Evaluates the CRD's rules without an API server, in the subset of CEL used by the rules and by DeviceClasses.

Used by `rules` for objects unchecked by an API server, and by `published_devices` for devices that the scheduler has
not chosen yet. Kubernetes defines the meaning; `tests/api/test_rules.py` compares with a full evaluator.
"""

import operator
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache, reduce
from typing import Any

from fairlead.api.quantities import parse_quantity


def matches(pattern: str, text: str) -> bool:
    """Whether a text matches a CRD's pattern. `$` is the very end; Python's would allow a line feed behind."""
    return re.search(re.sub(r"(?<!\\)\$(?=[)|]|$)", r"\\Z", pattern), text) is not None


Scope = Mapping[str, Any]
"""Name of a variable → its JSON value."""
Evaluate = Callable[[Scope], Any]

_TOKEN = re.compile(r"""\s*(\d+|'[^']*'|"[^"]*"|\w+|\|\||&&|[=!<>]=|\S)""")
_LEVELS = (("||",), ("&&",), ("==", "!=", "<=", ">=", "<", ">", "in"), ("%",))
"""Binary operators, loosest first."""
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "%": operator.mod,
    "in": lambda item, items: item in items,
}
_METHODS: Mapping[str, Callable[[Any, Any], Any]] = {
    "compareTo": lambda one, other: (one > other) - (one < other),
    "contains": operator.contains,
    "endsWith": str.endswith,
    "isGreaterThan": operator.gt,
    "isLessThan": operator.lt,
    "matches": lambda text, pattern: matches(pattern, text),
    "startsWith": str.startswith,
}
_MACROS: Mapping[str, Callable[..., bool]] = {
    "all": all,
    "exists": any,
    "exists_one": lambda found: sum(map(bool, found)) == 1,
}
"""Macros over lists, by the items' verdicts."""
_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {"quantity": parse_quantity, "size": len}
_LITERALS = {"true": True, "false": False}


_BOUNDED_METHODS = {name: method for name, method in _METHODS.items() if name != "matches"}
"""Methods whose work is bounded by the length of the expression and the device."""
_KEPT_SELECTORS = 1024


@cache
def compile_rule(text: str) -> Evaluate:
    """Of the CRD. Raises ValueError for unsupported syntax."""
    return _RuleParser(text).whole()


@lru_cache(_KEPT_SELECTORS)
def compile_selector(text: str) -> Evaluate:
    """An expression written by a user, without macros, regular expressions and `%`: these can take any time or memory.
    Raises ValueError for unsupported syntax."""
    if "%" in text:
        raise ValueError(f"{text!r}: % is not supported here")
    try:
        return _RuleParser(text, _BOUNDED_METHODS, {}).whole()
    except (IndexError, RecursionError) as error:
        raise ValueError(f"{text!r} ends too early or nests too deeply") from error


class _RuleParser:
    def __init__(
        self,
        text: str,
        methods: Mapping[str, Callable[[Any, Any], Any]] = _METHODS,
        macros: Mapping[str, Callable[..., bool]] = _MACROS,
    ) -> None:
        self._text, self._methods, self._macros = text, methods, macros
        self._tokens: list[str] = [*_TOKEN.findall(text), ""]
        self._at = 0

    def whole(self) -> Evaluate:
        """The text as an expression."""
        found = self.expression()
        self.need("")
        return found

    def take(self, *wanted: str) -> str | None:
        """The next token, if among `wanted`."""
        token = self._tokens[self._at]
        return self.word() if token in wanted else None

    def need(self, wanted: str) -> None:
        if self._tokens[self._at] != wanted:
            raise ValueError(f"{self._text!r}: {self._tokens[self._at]!r} stands where {wanted!r} should")
        self._at += 1

    def word(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def expression(self) -> Evaluate:
        condition = self._binary(0)
        if not self.take("?"):
            return condition
        then = self.expression()
        self.need(":")
        otherwise = self.expression()
        return lambda scope: then(scope) if condition(scope) else otherwise(scope)

    def _binary(self, level: int) -> Evaluate:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while sign := self.take(*_LEVELS[level]):
            left = _joined(sign, left, self._binary(level + 1))
        return left

    def _unary(self) -> Evaluate:
        if self.take("!"):
            negated = self._unary()
            return lambda scope: not negated(scope)
        value = self._primary()
        while sign := self.take(".", "["):
            if sign == "[":
                key = self.expression()
                self.need("]")
                value = _indexed(value, key)
                continue
            name = self.word()
            value = self._call(name, value) if self.take("(") else _field(value, name)
        return value

    def _primary(self) -> Evaluate:
        token = self.word()
        if token == "(":
            return self._closed()
        if token == "has" or token in _FUNCTIONS:
            self.need("(")
            return self._has() if token == "has" else _applied(_FUNCTIONS[token], self._closed())
        if token.isdigit() or token[:1] in ("'", '"') or token in _LITERALS:
            value = _LITERALS[token] if token in _LITERALS else int(token) if token.isdigit() else token[1:-1]
            return lambda scope: value
        return lambda scope: scope[token]

    def _closed(self) -> Evaluate:
        inner = self.expression()
        self.need(")")
        return inner

    def _has(self) -> Evaluate:
        """Whether a field is there. To API servers, null is none."""
        variable, path = self.word(), []
        while self.take("."):
            path.append(self.word())
        self.need(")")
        return lambda scope: reduce(lambda value, name: (value or {}).get(name), path, scope[variable]) is not None

    def _call(self, name: str, value: Evaluate) -> Evaluate:
        if name in self._macros:
            fold, variable = self._macros[name], self.word()
            self.need(",")
            holds = self._closed()
            return lambda scope: fold(holds({**scope, variable: item}) for item in value(scope))
        if name not in self._methods:
            raise ValueError(f"{self._text!r}: {name}() is not known here")
        method, argument = self._methods[name], self._closed()
        return lambda scope: method(value(scope), argument(scope))


def _joined(sign: str, left: Evaluate, right: Evaluate) -> Evaluate:
    if sign == "||":
        return lambda scope: left(scope) or right(scope)
    if sign == "&&":
        return lambda scope: left(scope) and right(scope)
    return lambda scope: _OPERATORS[sign](left(scope), right(scope))


def _field(value: Evaluate, name: str) -> Evaluate:
    return lambda scope: value(scope)[name]


def _indexed(value: Evaluate, key: Evaluate) -> Evaluate:
    return lambda scope: value(scope)[key(scope)]


def _applied(function: Callable[[Any], Any], value: Evaluate) -> Evaluate:
    return lambda scope: function(value(scope))
