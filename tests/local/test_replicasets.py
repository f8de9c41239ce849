"""Which pods a ReplicaSet deletes first: the order of Kubernetes' `ActivePodsWithRanks`, criterion by criterion."""

from typing import Any

import pytest

from fairlead_local.controllers.replicasets import victims

COST = "controller.kubernetes.io/pod-deletion-cost"


def pod(
    name: str,
    *,
    node: str | None = "n",
    phase: str = "Running",
    ready: str | None = "2030-01-01T00:00:00Z",
    cost: str | None = None,
    restarts: tuple[int, ...] = (0,),
    created: str = "2030-01-01T00:00:00Z",
) -> dict[str, Any]:
    """`ready`: since when; None = it is not."""
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": ready} if ready else {}
    statuses = [{"restartCount": number} for number in restarts]
    return {
        "metadata": {
            "name": name,
            "creationTimestamp": created,
            "annotations": {} if cost is None else {COST: cost},
        },
        "spec": {"nodeName": node} if node else {},
        "status": {
            "phase": phase,
            "conditions": [condition] if condition else [{"type": "Ready", "status": "False"}],
            "containerStatuses": statuses,
        },
    }


def first_to_go(*pods: dict[str, Any]) -> list[str]:
    return [each["metadata"]["name"] for each in victims(pods, len(pods))]


EARLIER, LATER = "2030-01-01T00:00:00Z", "2030-01-01T00:00:01Z"
CRITERIA = [
    ({"node": None, "phase": "Pending", "ready": None}, {"phase": "Pending", "ready": None, "cost": "-9"}),
    ({"phase": "Pending", "ready": None}, {"phase": "Unknown", "ready": None, "cost": "-9"}),
    ({"phase": "Unknown", "ready": None}, {"ready": None, "cost": "-9"}),
    ({"ready": None, "cost": "9"}, {"cost": "-9"}),
    ({"cost": "-1"}, {"ready": LATER}),
    ({}, {"cost": "1", "ready": LATER}),
    ({"ready": LATER}, {"restarts": (9,)}),
    ({"restarts": (2,)}, {"created": LATER}),
    ({"created": LATER}, {}),
]
"""What goes first, and what stays longer although everything after the criterion speaks against it."""


@pytest.mark.parametrize(("goes", "stays"), CRITERIA)
def test_each_criterion_decides_before_those_that_follow_it(goes: dict[str, Any], stays: dict[str, Any]) -> None:
    assert first_to_go(pod("stays", **stays), pod("goes", **goes)) == ["goes", "stays"]
    assert first_to_go(pod("goes", **goes), pod("stays", **stays)) == ["goes", "stays"]


def test_no_more_go_than_there_are_too_many() -> None:
    pods = [pod("plain"), pod("homeless", node=None)]
    assert [each["metadata"]["name"] for each in victims(pods, 1)] == ["homeless"]
    assert victims(pods, 0) == victims(pods, -3) == []


def test_restarts_are_those_of_the_container_that_restarted_most() -> None:
    assert first_to_go(pod("many", restarts=(2, 2)), pod("often", restarts=(3, 0))) == ["often", "many"]


def test_among_pods_that_are_not_ready_the_cost_decides() -> None:
    assert first_to_go(pod("plain", ready=None), pod("cheap", ready=None, cost="-5")) == ["cheap", "plain"]


@pytest.mark.parametrize("cost", ["+5", "007", "", "cheap", "1.5", " 1", "2147483648", "-2147483649"])
def test_a_cost_that_kubernetes_would_not_read_is_none(cost: str) -> None:
    pods = pod("odd", cost=cost), pod("cheap", cost="-1"), pod("dear", cost="1")
    assert first_to_go(*pods) == ["cheap", "odd", "dear"]


def test_the_smallest_cost_there_is_counts() -> None:
    assert first_to_go(pod("plain", cost="-5"), pod("marked", cost="-2147483647")) == ["marked", "plain"]
