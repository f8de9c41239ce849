"""Strategic merge patches on built-in kinds."""

from typing import Any

import pytest

from fairlead_local.apiserver.patches import strategic_merge
from fairlead_local.apiserver.resources import schema_of
from fairlead_local.apiserver.status import StatusError

DEPLOYMENT = schema_of("Deployment")


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": list(containers), **spec}}}}


def containers(obj: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = obj["spec"]["template"]["spec"]["containers"]
    return found


def test_containers_merge_by_name_and_their_variables_too() -> None:
    live = pod({"name": "a", "image": "x", "env": [{"name": "K", "value": "1"}]}, {"name": "b", "image": "y"})
    patch = pod({"name": "a", "env": [{"name": "L", "value": "2"}]})
    merged = containers(strategic_merge(DEPLOYMENT, live, patch))
    env = [{"name": "K", "value": "1"}, {"name": "L", "value": "2"}]
    assert merged == [{"name": "a", "image": "x", "env": env}, {"name": "b", "image": "y"}]


def test_lists_without_a_key_are_replaced() -> None:
    live, patch = pod({"name": "a", "args": ["1", "2"]}), pod({"name": "a", "args": ["3"]})
    assert containers(strategic_merge(DEPLOYMENT, live, patch)) == [{"name": "a", "args": ["3"]}]


def test_an_item_is_deleted_and_a_list_replaced_by_directive() -> None:
    live = pod({"name": "a"}, {"name": "b"})
    assert containers(strategic_merge(DEPLOYMENT, live, pod({"name": "a", "$patch": "delete"}))) == [{"name": "b"}]
    assert containers(strategic_merge(DEPLOYMENT, live, pod({"$patch": "replace"}, {"name": "c"}))) == [{"name": "c"}]


def test_null_removes_and_the_rest_stays() -> None:
    live = {"spec": {"replicas": 1, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    patch = {"spec": {"replicas": None, "strategy": {"type": "Recreate", "rollingUpdate": None}}}
    assert strategic_merge(DEPLOYMENT, live, patch) == {"spec": {"strategy": {"type": "Recreate"}}}


def test_finalizers_join_and_leave_by_value() -> None:
    live = {"metadata": {"finalizers": ["a/x", "a/y"]}}
    joined = strategic_merge(DEPLOYMENT, live, {"metadata": {"finalizers": ["a/z"]}})
    assert joined["metadata"]["finalizers"] == ["a/x", "a/y", "a/z"]
    left = strategic_merge(DEPLOYMENT, live, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/x"]}})
    assert left["metadata"]["finalizers"] == ["a/y"]


def test_the_order_of_items_can_be_set() -> None:
    live = pod({"name": "a"}, {"name": "b"})
    patch = {"spec": {"template": {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}}}
    assert [found["name"] for found in containers(strategic_merge(DEPLOYMENT, live, patch))] == ["b", "a"]


@pytest.mark.parametrize("patch", [pod({"image": "x"}), {"$patch": "shuffle"}, {"$retainKeys": ["spec"]}])
def test_a_patch_that_is_not_taken_is_refused(patch: dict[str, Any]) -> None:
    with pytest.raises(StatusError) as refused:
        strategic_merge(DEPLOYMENT, pod({"name": "a"}), patch)
    assert refused.value.code == 400
