"""Server-side apply: merging by schema, who owns what, conflicts."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_local.apiserver import fieldsets
from fairlead_local.apiserver.managed_fields import Manager, Owned, apply, decode, encode, track
from fairlead_local.apiserver.resources import schema_of
from fairlead_local.apiserver.status import StatusError

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "b": {"type": "integer"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "whole": {"type": "array", "x-kubernetes-list-type": "atomic", "items": {"type": "integer"}},
                "flags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "items": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "properties": {"name": {"type": "string"}, "x": {"type": "integer"}, "y": {"type": "integer"}},
                    },
                },
            },
        }
    },
}
Letters = st.sampled_from(["p", "q", "r"])
Item = st.fixed_dictionaries({"name": Letters}, optional={"x": st.integers(0, 2), "y": st.integers(0, 2)})
Spec = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(0, 2),
        "b": st.integers(0, 2),
        "labels": st.dictionaries(Letters, Letters, min_size=1),
        "whole": st.lists(st.integers(0, 2)),
        "flags": st.lists(Letters, unique=True, min_size=1),
        "items": st.lists(Item, unique_by=lambda item: item["name"], min_size=1),
    },
)
Config = Spec.map(lambda spec: {"spec": spec})
ANN, BOB = Manager("ann", "Apply", "test/v1"), Manager("bob", "Apply", "test/v1")
NOW = "2030-01-01T00:00:00Z"


def contains(whole: Any, part: Any, schema: dict[str, Any]) -> bool:
    """Whether everything `part` says is so in `whole`."""
    kind = fieldsets.shape(schema, part)
    if kind is fieldsets.MergeShape.LEAF:
        return bool(whole == part)
    before, after = fieldsets.children(schema, whole), fieldsets.children(schema, part)
    return all(key in before and contains(before[key][1], value, below) for key, (below, value) in after.items())


@given(Config)
@settings(deadline=None, max_examples=40)
def test_a_field_set_survives_its_wire_form(config: dict[str, Any]) -> None:
    fields = fieldsets.fields_of(SCHEMA, config)
    assert fieldsets.from_v1(fieldsets.to_v1(fields)) == fields


@given(Config, Config)
@settings(deadline=None, max_examples=50)
def test_a_merge_holds_what_was_applied(live: dict[str, Any], config: dict[str, Any]) -> None:
    before = copy.deepcopy(live)
    merged = fieldsets.merge(SCHEMA, live, config)
    assert contains(merged, config, SCHEMA)
    assert fieldsets.merge(SCHEMA, merged, config) == merged
    assert live == before


@given(Config, Config)
@settings(deadline=None, max_examples=50)
def test_a_difference_is_empty_only_between_equals(old: dict[str, Any], new: dict[str, Any]) -> None:
    difference = fieldsets.compare(SCHEMA, old, new)
    assert fieldsets.compare(SCHEMA, old, old) == fieldsets.Difference(frozenset(), frozenset())
    if not difference.changed and not difference.removed:
        assert contains(old, new, SCHEMA) and contains(new, old, SCHEMA)


@given(Config, Config)
@settings(deadline=None, max_examples=50)
def test_one_appliers_object_is_what_it_applied_last(first: dict[str, Any], second: dict[str, Any]) -> None:
    one = apply(SCHEMA, {}, ANN, {}, first, NOW, force=False)
    two = apply(SCHEMA, one.ownership, ANN, one.object, second, NOW, force=False)
    fresh = apply(SCHEMA, {}, ANN, {}, second, NOW, force=False)
    spec, wanted = two.object.get("spec") or {}, fresh.object.get("spec") or {}
    assert contains(spec, wanted, SCHEMA["properties"]["spec"])
    assert contains(wanted, spec, SCHEMA["properties"]["spec"])
    assert two.ownership[ANN].fields == fresh.ownership[ANN].fields


@given(Config, Config)
@settings(deadline=None, max_examples=50)
def test_a_second_applier_meets_a_conflict_exactly_where_it_would_change_the_firsts_fields(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    one = apply(SCHEMA, {}, ANN, {}, first, NOW, force=False)
    merged = fieldsets.merge(SCHEMA, one.object, second)
    clash = fieldsets.compare(SCHEMA, {"spec": one.object.get("spec", {})}, {"spec": merged.get("spec", {})}).changed
    if clash & one.ownership[ANN].fields:
        with pytest.raises(StatusError, match=r"conflict with|conflicts with") as refused:
            apply(SCHEMA, one.ownership, BOB, one.object, second, NOW, force=False)
        assert refused.value.code == 409
        assert all(c["reason"] == "FieldManagerConflict" for c in refused.value.details["causes"])
        two = apply(SCHEMA, one.ownership, BOB, one.object, second, NOW, force=True)
        assert not (clash & two.ownership.get(ANN, Owned(frozenset(), "")).fields)
    else:
        two = apply(SCHEMA, one.ownership, BOB, one.object, second, NOW, force=False)
        assert contains(two.object, first, SCHEMA)
    assert contains(two.object, second, SCHEMA)


@given(Config, Config)
@settings(deadline=None, max_examples=50)
def test_what_one_applier_gives_up_stays_while_another_owns_it(first: dict[str, Any], second: dict[str, Any]) -> None:
    one = apply(SCHEMA, {}, ANN, {}, first, NOW, force=False)
    two = apply(SCHEMA, one.ownership, BOB, one.object, second, NOW, force=True)
    gone = apply(SCHEMA, two.ownership, ANN, two.object, {}, NOW, force=False)
    assert contains(gone.object, second, SCHEMA)


@given(Config, Config)
@settings(deadline=None, max_examples=50)
def test_an_update_owns_what_it_changed_and_nobody_owns_what_it_removed(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    editor = Manager("editor", "Update", "test/v1")
    one = apply(SCHEMA, {}, ANN, {}, old, NOW, force=False)
    ownership = track(SCHEMA, one.ownership, editor, old, new, NOW)
    difference = fieldsets.compare(SCHEMA, old, new)
    everything = frozenset().union(*(owned.fields for owned in ownership.values()))
    assert not everything & difference.removed
    if difference.changed:
        assert difference.changed <= ownership[editor].fields
    assert decode(encode(ownership)).keys() == {manager for manager, owned in ownership.items() if owned.fields}


def test_paths_read_as_people_write_them() -> None:
    path = ("f:spec", "f:containers", 'k:{"name":"engine"}', "f:ports", 'k:{"containerPort":8000,"protocol":"TCP"}')
    assert fieldsets.readable(path) == '.spec.containers[name="engine"].ports[containerPort=8000,protocol="TCP"]'


def test_keys_of_a_list_fall_back_on_the_schemas_default() -> None:
    ports = [{"containerPort": 8000}]
    config = {"spec": {"template": {"spec": {"containers": [{"name": "engine", "ports": ports}]}}}}
    fields = fieldsets.fields_of(schema_of("Deployment"), config)
    assert any('k:{"containerPort":8000,"protocol":"TCP"}' in path for path in fields)


def test_a_list_with_one_item_twice_is_refused() -> None:
    with pytest.raises(StatusError, match="duplicate entries"):
        apply(SCHEMA, {}, ANN, {}, {"spec": {"items": [{"name": "p"}, {"name": "p"}]}}, NOW, force=False)
