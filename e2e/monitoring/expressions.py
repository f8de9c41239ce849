"""Which labels the result of a PromQL expression can have, given those of the series that it reads. Pure.

Raises Wrong for what Prometheus would take without a word and answer with nothing: metrics that nobody exports, labels
that a metric does not have, label values that do not occur.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser as promql

Labels = frozenset[str]
_ABSENT = ("absent", "absent_over_time")


class Wrong(Exception):
    """The expression asks for something that does not exist."""


def labels_of(text: str, exported: Mapping[str, Labels]) -> Labels:
    """Labels of the result. Raises Wrong, and ValueError where it is no PromQL."""
    return _labels(promql.parse(text), exported)


def selectors(text: str) -> Iterator[tuple[str, str, str, bool]]:
    """Every matcher: metric, label, value, and whether the value is a regular expression."""
    for node in _nodes(promql.parse(text)):
        if isinstance(node, promql.VectorSelector):
            for matcher in node.matchers.matchers:
                is_pattern = matcher.op in (promql.MatchOp.Re, promql.MatchOp.NotRe)
                yield str(node.name), matcher.name, matcher.value, is_pattern


def matchers(text: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Of every series that is read: its name, and label and value of each of its matchers."""
    for node in _nodes(promql.parse(text)):
        if isinstance(node, promql.VectorSelector):
            yield str(node.name), [(matcher.name, matcher.value) for matcher in node.matchers.matchers]


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in _children(node):
        yield from _nodes(child)


def _children(node: Any) -> list[Any]:
    if isinstance(node, promql.Call):
        return list(node.args)
    if isinstance(node, promql.BinaryExpr):
        return [node.lhs, node.rhs]
    if isinstance(node, promql.MatrixSelector):
        return [node.vector_selector]
    if isinstance(node, promql.AggregateExpr | promql.ParenExpr | promql.UnaryExpr | promql.SubqueryExpr):
        return [node.expr]
    return []


def _labels(node: Any, exported: Mapping[str, Labels]) -> Labels:
    if isinstance(node, promql.VectorSelector):
        return _of_series(node, exported)
    if isinstance(node, promql.AggregateExpr):
        return _of_aggregate(node, exported)
    if isinstance(node, promql.BinaryExpr):
        return _of_binary(node, exported)
    if isinstance(node, promql.Call):
        return _of_call(node, exported)
    return frozenset().union(*(_labels(child, exported) for child in _children(node)))


def _of_series(node: promql.VectorSelector, exported: Mapping[str, Labels]) -> Labels:
    name = str(node.name)
    if name not in exported:
        raise Wrong(f"nobody exports {name}")
    has = exported[name]
    _require({matcher.name for matcher in node.matchers.matchers}, has, name)
    return has


def _of_aggregate(node: promql.AggregateExpr, exported: Mapping[str, Labels]) -> Labels:
    inner = _labels(node.expr, exported)
    if node.modifier is None:
        return frozenset()
    _require(node.modifier.labels, inner, node.expr.prettify())
    named = frozenset(node.modifier.labels)
    return named if node.modifier.type == promql.AggModifierType.By else inner - named


def _of_binary(node: promql.BinaryExpr, exported: Mapping[str, Labels]) -> Labels:
    left, right = _labels(node.lhs, exported), _labels(node.rhs, exported)
    modifier, op = node.modifier, str(node.op)
    matching = modifier.matching if modifier is not None else None
    if _is_scalar(node.lhs) or _is_scalar(node.rhs):
        return left | right
    if matching is not None:
        _require(matching.labels, left & right, node.prettify())
    elif op != "or" and left != right:
        raise Wrong(f"{sorted(left ^ right)} are on one side only of {node.prettify()}")
    return left | right if op == "or" else left


def _of_call(node: promql.Call, exported: Mapping[str, Labels]) -> Labels:
    inner = frozenset().union(*(_labels(child, exported) for child in node.args))
    if node.func.name in _ABSENT:
        return frozenset()
    if node.func.name == "histogram_quantile":
        _require({"le"}, inner, node.prettify())
        return inner - {"le"}
    if node.func.name == "label_replace":
        _, target, _, source, _ = (getattr(argument, "val", "") for argument in node.args)
        _require({source}, inner, node.prettify())
        return inner | {target}
    if node.func.name == "label_join":
        _, target, _, *sources = (getattr(argument, "val", "") for argument in node.args)
        _require(sources, inner, node.prettify())
        return inner | {target}
    return inner


def _is_scalar(node: Any) -> bool:
    if isinstance(node, promql.ParenExpr):
        return _is_scalar(node.expr)
    return isinstance(node, promql.NumberLiteral) or (isinstance(node, promql.Call) and node.func.name == "scalar")


def _require(wanted: Any, has: Labels, where: str) -> None:
    if missing := set(wanted) - has:
        raise Wrong(f"{where} has no label {', '.join(sorted(missing))}")
