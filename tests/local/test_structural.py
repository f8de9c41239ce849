"""Structural schemas: validation, pruning, defaults and rules, as a Kubernetes API server does them."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_local.apiserver import cel
from fairlead_local.apiserver.cel import check_rules, compile_rules
from fairlead_local.apiserver.status import ViolationKind
from fairlead_local.apiserver.structural import apply_defaults, prune, prune_nulls, validate

PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8, "pattern": "^[a-z]+$"},
        "mode": {"type": "string", "enum": ["Fast", "Slow"], "default": "Fast"},
        "ratio": {"type": "number", "exclusiveMinimum": True, "minimum": 0, "maximum": 1},
        "ports": {"type": "array", "items": PORT, "maxItems": 2, "x-kubernetes-list-type": "set"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 2},
        "size": {"x-kubernetes-int-or-string": True},
        "maybe": {"type": "string", "nullable": True},
        "since": {"type": "string", "format": "date-time"},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "nested": {"type": "object", "default": {}, "properties": {"depth": {"type": "integer", "default": 3}}},
        "users": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                "x-kubernetes-validations": [{"rule": "self.age >= oldSelf.age", "message": "age must not shrink"}],
            },
        },
        "low": {"type": "integer"},
        "high": {"type": "integer"},
    },
    "x-kubernetes-validations": [
        {"rule": "!has(self.low) || !has(self.high) || self.low <= self.high", "message": "low must not be above high"}
    ],
}


def problems(value: Any) -> list[tuple[str, ViolationKind]]:
    return [(problem.path, problem.kind) for problem in validate(SCHEMA, value)]


def test_a_fitting_object_has_no_problems() -> None:
    value = {
        "name": "abc",
        "mode": "Slow",
        "ratio": 1,
        "ports": [1, 2],
        "labels": {"a": "b"},
        "size": "10%",
        "maybe": None,
        "free": {"what": ["ever"]},
        "users": [{"name": "a"}, {"name": "b"}],
    }
    assert problems(value) == []


@pytest.mark.parametrize(
    ("fields", "path", "kind"),
    [
        ({"name": None}, "name", ViolationKind.REQUIRED),
        ({"name": 1}, "name", ViolationKind.TYPE),
        ({"name": ""}, "name", ViolationKind.INVALID),
        ({"name": "ABC"}, "name", ViolationKind.INVALID),
        ({"name": "abc\n"}, "name", ViolationKind.INVALID),
        ({"name": "abcdefghi"}, "name", ViolationKind.TOO_LONG),
        ({"mode": "Medium"}, "mode", ViolationKind.NOT_SUPPORTED),
        ({"ratio": 0}, "ratio", ViolationKind.INVALID),
        ({"ratio": 1.5}, "ratio", ViolationKind.INVALID),
        ({"ratio": "half"}, "ratio", ViolationKind.TYPE),
        ({"ports": [0]}, "ports[0]", ViolationKind.INVALID),
        ({"ports": [1.5]}, "ports[0]", ViolationKind.TYPE),
        ({"ports": [True]}, "ports[0]", ViolationKind.TYPE),
        ({"ports": [1, 2, 3]}, "ports", ViolationKind.TOO_MANY),
        ({"ports": [1, 1]}, "ports[1]", ViolationKind.DUPLICATE),
        ({"labels": {"a": 1}}, "labels.a", ViolationKind.TYPE),
        ({"labels": {"a": "", "b": "", "c": ""}}, "labels", ViolationKind.TOO_MANY),
        ({"size": 1.5}, "size", ViolationKind.TYPE),
        ({"users": [{"name": "a"}, {"name": "a"}]}, "users[1]", ViolationKind.DUPLICATE),
        ({"nested": {"depth": "3"}}, "nested.depth", ViolationKind.TYPE),
        ({"nested": []}, "nested", ViolationKind.TYPE),
        ({"mode": 7}, "mode", ViolationKind.TYPE),
        ({"mode": 7}, "mode", ViolationKind.NOT_SUPPORTED),
        ({"ports": [None]}, "ports[0]", ViolationKind.TYPE),
        ({"ports": [2.0**53]}, "ports[0]", ViolationKind.TYPE),
        ({"size": 2**63}, "size", ViolationKind.TYPE),
        ({"since": "yesterday"}, "since", ViolationKind.TYPE),
        ({"since": "2030-02-30T00:00:00Z"}, "since", ViolationKind.TYPE),
        ({"since": "2030-02-03T24:00:00Z"}, "since", ViolationKind.TYPE),
    ],
)
def test_each_problem_is_named_by_path_and_kind(fields: dict[str, Any], path: str, kind: ViolationKind) -> None:
    assert (path, kind) in problems({"name": "abc"} | fields)


def test_a_whole_double_is_an_integer_and_a_text_has_one_problem_at_a_time() -> None:
    assert problems({"name": "abc", "size": 2.0, "ports": [8.0], "since": "2030-02-03T04:05:06.7+01:00"}) == []
    assert problems({"name": ""}) == [("name", ViolationKind.INVALID)]


def test_a_null_counts_as_absent_where_null_is_no_value() -> None:
    value = {"name": "a", "mode": None, "maybe": None, "labels": {"a": None}, "free": {"x": None}, "ports": [None]}
    left = {"name": "a", "mode": None, "maybe": None, "labels": {}, "free": {"x": None}, "ports": [None]}
    assert prune_nulls(SCHEMA, value | {"low": None}) == left, "mode has a default, which takes its place"
    assert problems({"name": "abc", "low": None, "labels": {"a": None, "b": "", "c": ""}}) == []


def test_a_value_that_is_there_three_times_is_one_problem() -> None:
    users = [{"name": "a"}, {}, {"name": "a"}, {"name": "a"}, {}]
    assert problems({"name": "abc", "users": users}) == [
        ("users[2]", ViolationKind.DUPLICATE),
        ("users[4]", ViolationKind.DUPLICATE),
    ]
    assert problems({"name": "abc", "users": ["a", "a"]}) == [(f"users[{n}]", ViolationKind.TYPE) for n in (0, 1)]


def test_a_missing_required_field_is_named() -> None:
    assert problems({}) == [("name", ViolationKind.REQUIRED)]


def test_messages_are_worded_as_kubernetes_words_them() -> None:
    messages = [str(problem) for problem in validate(SCHEMA, {"name": "abc", "mode": "Medium", "ports": [0]}, "spec")]
    assert messages == [
        'spec.mode: Unsupported value: "Medium": supported values: "Fast", "Slow"',
        "spec.ports[0]: Invalid value: 0: spec.ports[0] in body should be greater than or equal to 1",
    ]


def test_pruning_removes_unknown_fields_and_names_them() -> None:
    value = {"name": "a", "nmae": "b", "nested": {"depht": 1}, "free": {"x": 1}, "users": [{"name": "a", "agee": 1}]}
    kept, unknown = prune(SCHEMA, value, "spec")
    assert kept == {"name": "a", "nested": {}, "free": {"x": 1}, "users": [{"name": "a"}]}
    assert unknown == ["spec.nmae", "spec.nested.depht", "spec.users[0].agee"]


def test_the_fields_of_every_object_are_known_at_the_root() -> None:
    schema = {"type": "object", "properties": {"spec": {"type": "object"}}}
    body = {"apiVersion": "v1", "kind": "K", "metadata": {"name": "a"}, "spec": {}, "spce": {}}
    kept, unknown = prune(schema, body, root=True)
    assert unknown == ["spce"]
    assert kept["metadata"] == {"name": "a"}
    assert prune(schema, body)[1] == ["apiVersion", "kind", "metadata", "spce"]


def test_defaults_are_filled_in_depth() -> None:
    before: dict[str, Any] = {"name": "a"}
    assert apply_defaults(SCHEMA, before) == {"name": "a", "mode": "Fast", "nested": {"depth": 3}}
    assert before == {"name": "a"}
    assert apply_defaults(SCHEMA, {"mode": None})["mode"] == "Fast"
    assert apply_defaults(SCHEMA, {"mode": "Slow"})["mode"] == "Slow"


def test_a_broken_rule_is_reported_where_it_stands_with_its_sentence() -> None:
    (broken,) = check_rules(SCHEMA, {"name": "a", "low": 2, "high": 1}, path="spec")
    assert str(broken) == "spec: Invalid value: low must not be above high"
    assert check_rules(SCHEMA, {"name": "a", "low": 1, "high": 2}) == []


def test_a_rule_about_the_past_is_checked_on_updates_only() -> None:
    old = {"users": [{"name": "a", "age": 5}, {"name": "b", "age": 1}]}
    new = {"users": [{"name": "b", "age": 2}, {"name": "a", "age": 4}, {"name": "c", "age": 0}]}
    assert check_rules(SCHEMA, new) == []
    assert [broken.path for broken in check_rules(SCHEMA, new, old)] == ["users[1]"]


STRICTER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 2},
        "count": {"type": "integer", "maximum": 1},
        "inner": {"type": "object", "required": ["must"], "properties": {"free": {"type": "integer"}}},
        "by_key": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {}, "v": {"type": "integer", "maximum": 1}}},
        },
        "plain": {"type": "array", "items": {"type": "integer", "maximum": 1}},
        "whole": {"type": "array", "x-kubernetes-list-type": "atomic", "items": {"type": "integer", "maximum": 1}},
        "distinct": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "also": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "map": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 2}},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("old", "changes", "paths"),
    [
        ({"name": "long", "count": 9}, {}, []),
        ({"name": "long", "count": 9}, {"count": 8}, ["count"]),
        ({"name": "long"}, {"count": 9}, ["count"]),
        ({"name": 1}, {"name": True}, ["name"]),
        ({"count": 9}, {"count": 9.0}, []),
        ({"inner": {"free": 1}}, {"count": 1}, []),
        ({"inner": {"free": 1}}, {"inner": {"free": 2}}, ["inner.must"]),
        ({"by_key": [{"k": "a", "v": 9}, {"k": "b", "v": 9}]}, {"by_key": [{"k": "b", "v": 9}, {"k": "a", "v": 8}]},
         ["by_key[1].v"]),
        ({"by_key": [{"k": "a", "v": 9}]}, {"by_key": [{"k": "c", "v": 9}]}, ["by_key[0].v"]),
        ({"plain": [9, 9]}, {"count": 1}, []),
        ({"plain": [9, 9]}, {"plain": [9, 9, 1]}, ["plain[0]", "plain[1]"]),
        ({"whole": [9, 9]}, {"count": 1}, []),
        ({"whole": [9, 9]}, {"whole": [9, 9, 1]}, ["whole[0]", "whole[1]"]),
        ({"whole": 9}, {"whole": [9]}, ["whole[0]"]),
        ({"distinct": ["a", "a"]}, {"distinct": ["a", "a", "b"]}, []),
        ({"distinct": ["a", "a"]}, {"also": ["b", "b"]}, []),
        ({"distinct": ["a"]}, {"distinct": ["a", "a"]}, ["distinct[1]"]),
        ({"map": {"x": "long", "y": "long"}}, {"map": {"x": "long", "y": "other"}}, ["map.y"]),
    ],
)  # fmt: skip
def test_what_an_update_leaves_alone_is_not_held_against_it(
    old: dict[str, Any], changes: dict[str, Any], paths: list[str]
) -> None:
    assert [problem.path for problem in validate(STRICTER, old | changes, old=old)] == paths


def test_rules_are_not_held_against_what_an_update_leaves_alone_unless_they_are_about_the_past() -> None:
    item = {
        "type": "object",
        "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.low <= self.high", "message": "order"}],
    }
    schema = {
        "type": "object",
        "properties": {
            "a": item,
            "b": item,
            "whole": {"type": "array", "x-kubernetes-list-type": "atomic", "items": item},
            "once": {"type": "integer", "x-kubernetes-validations": [{"rule": "oldSelf != 1", "message": "stuck"}]},
        },
    }
    bad = {"low": 2, "high": 1}
    old = {"a": bad, "b": bad, "whole": [bad]}

    def broken(**changes: Any) -> list[str]:
        return [problem.path for problem in check_rules(schema, old | changes, old)]

    assert broken() == []
    assert broken(b={"low": 3, "high": 1}) == ["b"]
    assert broken(whole=[bad, {"low": 1, "high": 1}]) == ["whole[0]"]
    old["once"] = 1
    assert broken() == ["once"]
    assert [problem.path for problem in check_rules(schema, old)] == ["a", "b", "whole[0]"]


def test_a_rule_that_has_no_value_counts_as_broken() -> None:
    schema = {"type": "object", "x-kubernetes-validations": [{"rule": "self.missing == 1", "message": "no"}]}
    (broken,) = check_rules(schema, {})
    assert "cannot be evaluated" in broken.message


def test_numbers_are_doubles_where_the_schema_says_number() -> None:
    schema = {
        "type": "object",
        "properties": {"x": {"type": "number"}},
        "x-kubernetes-validations": [{"rule": "self.x < 1.5"}],
    }
    assert check_rules(schema, {"x": 1}) == []
    assert check_rules(schema, {"x": 2}) != []


def test_a_text_that_is_no_rule_is_refused_with_its_place() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "x-kubernetes-validations": [{"rule": "self +"}]}},
    }
    with pytest.raises(cel.InvalidRule, match="a: "):
        compile_rules(schema)
    compile_rules(SCHEMA)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 70000) | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from([*SCHEMA["properties"], "unknown"]), json_values)


@settings(deadline=None, max_examples=50)
@given(objects)
def test_nothing_a_user_can_write_makes_it_fail(value: dict[str, Any]) -> None:
    before = deepcopy(value)
    validate(SCHEMA, value)
    kept, unknown = prune(SCHEMA, value)
    apply_defaults(SCHEMA, kept)
    assert value == before
    assert prune(SCHEMA, kept) == (kept, [])
    assert ("unknown" in value) == ("unknown" in unknown)


@settings(deadline=None, max_examples=50)
@given(objects)
def test_defaulting_twice_changes_nothing_more(value: dict[str, Any]) -> None:
    once = apply_defaults(SCHEMA, value)
    assert apply_defaults(SCHEMA, once) == once


def test_a_rule_is_evaluated_without_the_levels_of_the_grammar_at_which_nothing_happens() -> None:
    tree: Any = cel.compile_rule(
        "has(self.a) && self.b.all(each, each > (1 + 2) * -self.a) ? !self.c : self.d in [1]"
    ).ast
    levels = [each.data for each in tree.iter_subtrees() if each.data in cel._LEVELS]
    assert sorted(levels) == [
        "addition",
        "conditionaland",
        "expr",
        "multiplication",
        "relation",
        "relation",
        *["unary"] * 2,
    ]
    assert cel.holds(
        "has(self.a) && self.b.all(each, each > (1 + 2) * -self.a) ? !self.c : self.d in [1]",
        cel.to_cel({}, {"a": 1, "b": [-2, 4], "c": False, "d": 2}),
    )
    assert not cel.holds("has(self.e) || !self.b.exists(each, each == 4)", cel.to_cel({}, {"b": [-2, 4]}))
