"""Strategic merge of pod templates."""

from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.pod_spec import merge

BASE: dict[str, Any] = {
    "nodeSelector": {"a": "1"},
    "containers": [
        {
            "name": "engine",
            "image": "x",
            "args": ["serve"],
            "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "p"}}}],
            "volumeMounts": [{"name": "config", "mountPath": "/etc", "readOnly": True}],
        }
    ],
    "volumes": [{"name": "scratch", "emptyDir": {}}],
    "tolerations": [{"key": "a"}],
}


def test_objects_merge_by_field_and_null_removes() -> None:
    merged = merge(BASE, {"nodeSelector": {"b": "2", "a": None}, "hostNetwork": True, "tolerations": None})
    assert merged["nodeSelector"] == {"b": "2"}
    assert merged["hostNetwork"] is True
    assert "tolerations" not in merged


def test_containers_merge_by_name_and_new_ones_are_added() -> None:
    merged = merge(BASE, {"containers": [{"name": "side", "image": "y"}, {"name": "engine", "image": "z"}]})
    assert [container["name"] for container in merged["containers"]] == ["engine", "side"]
    assert merged["containers"][0]["image"] == "z"
    assert merged["containers"][0]["args"] == ["serve"]


def test_a_variable_takes_the_overlays_value_whole() -> None:
    overlay = {"containers": [{"name": "engine", "env": [{"name": "B", "value": "2"}, {"name": "C", "value": "3"}]}]}
    assert merge(BASE, overlay)["containers"][0]["env"] == [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "2"},
        {"name": "C", "value": "3"},
    ]


def test_a_volume_takes_the_overlays_source_whole() -> None:
    overlay = {"volumes": [{"name": "scratch", "hostPath": {"path": "/fast"}}]}
    assert merge(BASE, overlay)["volumes"] == [{"name": "scratch", "hostPath": {"path": "/fast"}}]


def test_mounts_merge_by_path() -> None:
    overlay = {"containers": [{"name": "engine", "volumeMounts": [{"name": "mine", "mountPath": "/etc"}]}]}
    (mount,) = merge(BASE, overlay)["containers"][0]["volumeMounts"]
    assert mount == {"name": "mine", "mountPath": "/etc", "readOnly": True}


def test_lists_without_a_key_are_replaced() -> None:
    overlay = {"containers": [{"name": "engine", "args": ["other"]}], "tolerations": [{"key": "b"}]}
    merged = merge(BASE, overlay)
    assert merged["containers"][0]["args"] == ["other"]
    assert merged["tolerations"] == [{"key": "b"}]


scalars = st.none() | st.booleans() | st.integers(0, 3) | st.text(max_size=3)
objects = st.dictionaries(
    st.sampled_from(["a", "b", "nodeSelector"]), scalars | st.dictionaries(st.sampled_from(["x", "y"]), scalars)
)


@settings(deadline=None, max_examples=50)
@given(objects, objects)
def test_merging_changes_neither_side_and_merging_again_changes_nothing(
    base: dict[str, Any], overlay: dict[str, Any]
) -> None:
    before = deepcopy((base, overlay))
    once = merge(base, overlay)
    assert (base, overlay) == before
    assert merge(once, overlay) == once
