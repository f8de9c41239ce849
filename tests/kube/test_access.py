"""What a server serves and what we may do there, asked of a small server."""

import pytest

from fairlead.kube.access import Right, is_served, missing_rights, rights
from fairlead.kube.client import KubeError
from fairlead.kube.resources import NETWORK_POLICIES, POD_DISRUPTION_BUDGETS, POD_MONITORS, PODS
from fairlead.testing.api_servers import discovering


async def test_a_kind_is_served_in_its_very_version() -> None:
    async with discovering(POD_DISRUPTION_BUDGETS, PODS) as client:
        assert await is_served(client, POD_DISRUPTION_BUDGETS)
        assert await is_served(client, PODS)
        assert not await is_served(client, POD_MONITORS)
        assert not await is_served(client, NETWORK_POLICIES)


async def test_any_other_answer_is_neither_yes_nor_no() -> None:
    async with discovering(fail_with=503) as client:
        with pytest.raises(KubeError):
            await is_served(client, POD_MONITORS)


async def test_rights_that_are_missing_are_named_with_their_namespace() -> None:
    async with discovering(PODS, denied={("delete", "pods", "b"), ("patch", "pods", "b")}) as client:
        missing = await missing_rights(client, rights(PODS, ("list", "patch", "delete"), ("a", "b")))
    assert [right.sentence_part for right in missing] == [
        "patch pods in the namespace b",
        "delete pods in the namespace b",
    ]


def test_a_right_for_everything_and_one_for_a_subresource_are_written_as_people_read_them() -> None:
    assert rights(NETWORK_POLICIES, ("list",), None)[0].sentence_part == (
        "list networkpolicies.networking.k8s.io in all namespaces"
    )
    scale = Right("patch", "fairlead.dev", "llmdeployments", "a", "scale")
    assert scale.sentence_part == "patch llmdeployments.fairlead.dev/scale in the namespace a"


async def test_where_nobody_can_be_asked_nothing_is_missing() -> None:
    async with discovering(PODS, knows_rights=False, denied={("list", "pods", "a")}) as client:
        assert await missing_rights(client, rights(PODS, ("list",), ("a",))) == []
