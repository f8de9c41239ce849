"""Victims: as many as have to go, the same ones at every look, and the very pods that the ReplicaSet deletes."""

from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api import names
from fairlead.controller.plan import choose_victims, has_acted, is_rolling, left_over, mark
from fairlead.controller.pod_diagnosis import Stage, diagnose
from fairlead.fleet.pods import ReplicaPods, is_active, is_marked, replicas_of
from fairlead.kube.client import JsonObject
from fairlead_local.controllers import replicasets

NOW = "2026-06-01T00:00:00Z"
CRASHED = {"name": "engine", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3}


def pod(
    name: str,
    *,
    ready: bool = True,
    phase: str = "Running",
    node: bool = True,
    created: int = 0,
    deleted: bool = False,
    crashed: bool = False,
    marked: bool = False,
) -> JsonObject:
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": NOW}
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "creationTimestamp": f"2026-01-01T00:00:{created:02}Z",
    }
    if deleted:
        metadata["deletionTimestamp"] = NOW
    if marked:
        metadata["annotations"] = mark(NOW)
    return {
        "metadata": metadata,
        "spec": {"nodeName": "n"} if node else {},
        "status": {
            "phase": phase,
            "conditions": [condition],
            "containerStatuses": [deepcopy(CRASHED)] if crashed else [],
        },
    }


def chosen(*pods: JsonObject, wanted: int, running: dict[str, int] | None = None) -> list[str]:
    loads = {f"uid-{name}": number for name, number in (running or {}).items()}
    return [each.name for each in choose_victims(replicas_of(pods), wanted, loads)]


def with_marks(pods: list[JsonObject], victims: tuple[ReplicaPods, ...]) -> list[JsonObject]:
    marked = deepcopy(pods)
    uids = {victim.uid for victim in victims}
    for each in marked:
        if each["metadata"]["uid"] in uids:
            each["metadata"]["annotations"] = mark(NOW)
    return marked


def test_who_does_not_serve_goes_first_then_who_serves_least_then_the_youngest() -> None:
    pods = [
        pod("old", created=1),
        pod("young", created=9),
        pod("idle", created=2),
        pod("crashed", ready=False, crashed=True),
        pod("loading", ready=False),
        pod("unscheduled", ready=False, phase="Pending", node=False),
    ]
    running = {"old": 3, "young": 3, "idle": 1}
    order = ["unscheduled", "crashed", "loading", "idle", "young", "old"]
    for wanted in range(6):
        assert chosen(*pods, wanted=wanted, running=running) == order[: 6 - wanted]


def test_what_is_going_anyway_counts_neither_as_replica_nor_as_victim() -> None:
    pods = [pod("a"), pod("b"), pod("gone", deleted=True), pod("evicted", phase="Failed", ready=False)]
    assert chosen(*pods, wanted=2) == []
    assert len(chosen(*pods, wanted=1)) == 1


def test_a_marked_one_stays_the_victim_whatever_its_load_becomes() -> None:
    pods = [pod("busy", marked=True), pod("idle"), pod("crashed", ready=False, crashed=True)]
    assert chosen(*pods, wanted=2, running={"busy": 9}) == ["busy"]


def test_one_that_was_asked_counts_as_marked_before_the_watch_shows_it() -> None:
    pods = [pod("a"), pod("b")]
    [victim] = choose_victims(replicas_of(pods), 1, {"uid-a": 5}, asked={"uid-a"})
    assert victim.name == "a"


def test_a_marked_replica_is_no_capacity() -> None:
    assert diagnose(pod("a", marked=True)).stage is Stage.DRAINING
    assert diagnose(pod("a", ready=False, crashed=True, marked=True)).stage is Stage.DRAINING
    assert names.ANNOTATION_DRAIN == "fairlead.dev/drain"


def engine(replicas: int, *, generation: int = 1, observed: int = 1, found: int = 0, updated: int = 0) -> JsonObject:
    status = {"observedGeneration": observed, "replicas": found, "updatedReplicas": updated}
    return {"metadata": {"generation": generation}, "spec": {"replicas": replicas}, "status": status}


def test_a_marked_pod_is_left_over_once_the_deployment_has_no_reason_to_delete_it() -> None:
    pods = replicas_of([pod("a", marked=True), pod("b"), pod("c", marked=True, deleted=True)])
    assert [each.name for each in left_over(pods, engine(2, found=2))] == ["a"]
    assert left_over(pods, engine(1, found=2)) == ()
    assert left_over(pods, engine(1, generation=2, found=1)) == ()
    assert left_over(replicas_of([pod("b")]), engine(1, found=1)) == ()


def test_a_rollout_is_one_while_pods_of_an_earlier_template_are_there() -> None:
    assert is_rolling(engine(2, found=3, updated=1))
    assert not is_rolling(engine(2, found=2, updated=2))
    assert not is_rolling({"metadata": {}, "spec": {}})
    assert has_acted(engine(2, found=2))


@st.composite
def fleets(draw: st.DrawFn) -> list[JsonObject]:
    """Pods of one ReplicaSet in any state."""
    pods = []
    for number in range(draw(st.integers(0, 7))):
        phase = draw(st.sampled_from(["Running", "Running", "Running", "Pending", "Failed"]))
        pods.append(
            pod(
                f"p{number}",
                phase=phase,
                ready=phase == "Running" and draw(st.booleans()),
                node=phase != "Pending" or draw(st.booleans()),
                created=draw(st.integers(0, 3)),
                deleted=draw(st.integers(0, 5)) == 0,
                crashed=draw(st.booleans()),
                marked=draw(st.integers(0, 4)) == 0,
            )
        )
    return pods


LOADS = st.dictionaries(st.sampled_from([f"uid-p{number}" for number in range(7)]), st.integers(0, 3))


@settings(deadline=None, max_examples=80)
@given(fleets(), st.integers(0, 7), LOADS, LOADS)
def test_never_more_than_necessary_and_the_same_ones_at_the_next_look(
    pods: list[JsonObject], wanted: int, running: dict[str, int], later: dict[str, int]
) -> None:
    victims = choose_victims(replicas_of(pods), wanted, running)
    num_active = sum(map(is_active, pods))
    assert len(victims) == max(0, num_active - wanted)
    assert all(victim.is_active for victim in victims)
    uids = {victim.uid for victim in victims}
    again = choose_victims(replicas_of(with_marks(pods, victims)), wanted, later)
    if not any(is_marked(each) and each["metadata"]["uid"] not in uids for each in pods if is_active(each)):
        assert {victim.uid for victim in again} == uids


@settings(deadline=None, max_examples=80)
@given(fleets(), st.integers(0, 7), LOADS)
def test_the_replica_set_deletes_exactly_the_victims(
    pods: list[JsonObject], wanted: int, running: dict[str, int]
) -> None:
    for each in pods:
        each["metadata"].pop("annotations", None)
    victims = choose_victims(replicas_of(pods), wanted, running)
    active = [each for each in with_marks(pods, victims) if is_active(each)]
    deleted = replicasets.victims(active, len(active) - wanted)
    assert {each["metadata"]["name"] for each in deleted} == {victim.name for victim in victims}
