"""A leader and a worker are one replica wherever replicas are counted, judged, chosen or sought."""

from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.controller.applier import Applier, ChildChange
from fairlead.controller.autoscale import ColdStart
from fairlead.controller.desired import desired
from fairlead.controller.observe import Observed
from fairlead.controller.plan import Plan, choose_victims, key_of, left_over, make_plan, mark
from fairlead.controller.pod_diagnosis import PodWarning, Stage
from fairlead.controller.pod_starts import start_stages
from fairlead.controller.status import situation, status
from fairlead.fleet.kubernetes import KubernetesFleet
from fairlead.fleet.pods import ReplicaPods, replicas_of
from fairlead.fleet.replica_tasks import ModelInfoClient
from fairlead.kube.client import JsonObject
from fairlead.operator_settings import OperatorSettings
from fairlead.routing.replica import Replica
from fairlead_testing.fleet_objects import stored

SETTINGS = OperatorSettings()
GOING = {"deletionTimestamp": "2026-01-01T00:09:00Z"}
LEADER, WORKER = 0, 1


def at(second: int) -> str:
    return f"2026-01-01T00:00:{second:02}Z"


def pod(group: int, rank: int, *, ready: int | None = 30, size: int = 2, metadata: Any = (), **container: Any) -> Any:
    """`ready`: the second in which the pod became ready; None = not ready. `container`: the engine's status."""
    name = f"g-{group}" if rank == LEADER else f"g-{group}-{rank}"
    labels = {"group-key": f"key-{group}", "worker-index": str(rank)}
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at(2 + rank)}]
    if ready is not None:
        conditions.append({"type": "Ready", "status": "True", "lastTransitionTime": at(ready)})
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "creationTimestamp": at(rank),
            "labels": {"fairlead.dev/llmdeployment": "dinghy"}
            | {f"leaderworkerset.sigs.k8s.io/{key}": value for key, value in labels.items()},
            "annotations": {"leaderworkerset.sigs.k8s.io/size": str(size)},
            **dict(metadata),
        },
        "spec": {"nodeName": f"n{rank}"},
        "status": {
            "phase": "Running",
            "podIP": f"10.0.{group}.{rank}",
            "conditions": conditions,
            "containerStatuses": [{"name": "engine", "restartCount": 0} | container] if container else [],
        },
    }


def group(number: int, **worker: Any) -> list[JsonObject]:
    """Both pods, the worker first, as a list may bring them."""
    return [pod(number, WORKER, **worker), pod(number, LEADER)]


def seen(*pods: JsonObject, replicas: int = 1, **observed: Any) -> Observed:
    body = stored(replicas=replicas)
    children = {key_of(child): child for child in desired(Observed(body=body), SETTINGS).children}
    return Observed(body=body, children=children, pods=pods, **observed)


def counts(*pods: JsonObject, **observed: Any) -> tuple[int, int, int]:
    """Replicas, ready and draining ones of the status."""
    found = seen(*pods, **observed)
    now = situation(found, desired(found, SETTINGS), (), is_applying=False)
    told = status(found, now, SETTINGS, time=at(59))
    return told["replicas"], told["readyReplicas"], told["drainingReplicas"]


def test_pods_are_grouped_by_label_and_one_without_stands_for_itself() -> None:
    alone = {"metadata": {"name": "p", "uid": "u"}, "status": {"podIP": "10.0.9.9"}}
    first, second, third = replicas_of([*group(0), alone, *group(1)])
    assert [each.name for each in (first, second, third)] == ["g-0", "p", "g-1"]
    assert [each["metadata"]["name"] for each in first.pods] == ["g-0", "g-0-1"]
    assert (first.uid, first.address, first.created) == ("uid-g-0", "10.0.0.0", at(0))
    assert (second.leader, second.pods, second.address, second.is_whole) == (alone, (alone,), "10.0.9.9", True)


def test_it_is_ready_once_both_pods_are_and_goes_when_one_of_them_does() -> None:
    assert ReplicaPods.of(*group(0, ready=40)).ready_since == at(40)
    assert ReplicaPods.of(*group(0, ready=None)).ready_since is None
    lone = ReplicaPods.of(pod(0, LEADER))
    assert (lone.is_whole, lone.became_ready, lone.address) == (False, None, "10.0.0.0")
    going = ReplicaPods.of(*group(0, metadata=GOING))
    assert (going.is_terminating, going.is_active, going.ready_since) == (True, False, None)
    headless = ReplicaPods.of(pod(0, WORKER, size=1))
    assert (headless.address, headless.ready_since) == ("", None)


CREATING = {"state": {"waiting": {"reason": "ContainerCreating"}}}
LOADING = {"state": {"running": {"startedAt": at(5)}}, "started": False}
CRASHED = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 2}


@pytest.mark.parametrize(
    ("pods", "stage", "reason", "about", "counted"),
    [
        (group(0), Stage.READY, "", "g-0", (1, 1, 0)),
        ([pod(0, LEADER)], Stage.STARTING, "Scheduling", "g-0", (1, 0, 0)),
        (group(0, ready=None, **LOADING), Stage.STARTING, "LoadingModel", "g-0-1", (1, 0, 0)),
        ([pod(0, LEADER, ready=None, **LOADING), pod(0, WORKER, ready=None, **CREATING)], Stage.STARTING,
         "ContainerCreating", "g-0-1", (1, 0, 0)),
        (group(0, ready=None, **CRASHED), Stage.FAILING, "CrashLoopBackOff", "g-0-1", (1, 0, 0)),
        (group(0, metadata=GOING), Stage.DRAINING, "", "g-0-1", (0, 0, 1)),
        (group(0, metadata={"annotations": mark(at(9))}), Stage.DRAINING, "", "g-0-1", (0, 0, 1)),
    ],
)  # fmt: skip
def test_the_least_advanced_pod_decides(
    pods: list[JsonObject], stage: Stage, reason: str, about: str, counted: tuple[int, int, int]
) -> None:
    (found,) = seen(*pods).diagnoses
    assert (found.stage, found.reason, found.pod) == (stage, reason, about)
    assert counts(*pods) == counted


def test_warnings_are_of_a_pod_and_a_hang_is_the_leaders() -> None:
    pods = [pod(0, LEADER), pod(0, WORKER, ready=None, **CREATING)]
    (held,) = seen(*pods, warnings={"uid-g-0-1": PodWarning("FailedMount", "no secret")}).diagnoses
    assert (held.stage, held.reason, held.pod) == (Stage.FAILING, "FailedMount", "g-0-1")
    (hangs,) = seen(*group(0), hanging={"uid-g-0": at(9)}).diagnoses
    assert (hangs.stage, hangs.reason, hangs.pod) == (Stage.READY, "ReplicaHangs", "g-0")


def test_a_start_ends_with_its_last_pod_and_is_measured_once() -> None:
    workers = {"state": {"running": {"startedAt": at(20)}}}
    replica = ReplicaPods.of(*group(0, ready=50, **workers))
    assert start_stages(replica) == {"schedule": 3.0, "image": 17.0, "load": 30.0}
    cold_start = ColdStart().observe([replica])
    assert cold_start.seconds == 50.0
    assert cold_start.observe(replicas_of(group(0, ready=55))) == cold_start


def test_the_victim_is_a_whole_group_and_what_is_chosen_stays_chosen() -> None:
    pods = [*group(0), *group(1), *group(2, ready=None)]
    replicas, running = replicas_of(pods), {"uid-g-0": 5, "uid-g-1": 2, "uid-g-1-1": 9}
    assert [each.name for each in choose_victims(replicas, 1, running)] == ["g-2", "g-1"], "and its worker has no load"
    marked = replicas_of([*group(0, metadata={"annotations": mark(at(9))}), *group(1), *group(2)])
    assert [each.name for each in choose_victims(marked, 2, running)] == ["g-0"]
    engine = {"metadata": {}, "spec": {"replicas": 3}, "status": {"replicas": 3}}
    assert [each.name for each in left_over(marked, engine)] == ["g-0"]
    assert choose_victims(replicas_of([*group(0), *group(1, metadata=GOING)]), 1, {}) == ()


class Api:
    """Notes what is written to which pod."""

    def __init__(self) -> None:
        self.written: list[str] = []

    async def patch(self, resource: Any, name: str, patch: JsonObject, namespace: str, **_: Any) -> None:
        assert patch["metadata"]["annotations"] == mark(at(59))
        self.written.append(f"mark {name}")

    async def delete(self, resource: Any, name: str, namespace: str, *, uid: str) -> None:
        self.written.append(f"delete {name}")

    async def ask(self, pods: Iterable[JsonObject]) -> None:
        self.written += [f"ask {pod['metadata']['name']}" for pod in pods]


async def test_a_drain_marks_every_pod_and_asks_the_leader_and_a_replacement_deletes_all() -> None:
    observed = seen(*group(0), *group(1), replicas=2)
    observed.body["spec"]["replicas"] = 1
    plan = make_plan(desired(observed, SETTINGS), observed)
    assert [each.name for each in plan.drain] == ["g-0"]
    api = Api()
    using = Applier(api, drain=api.ask, now=lambda: datetime.fromisoformat(at(59)).astimezone(UTC))  # type: ignore[arg-type]
    told = await using.apply(Plan(drain=plan.drain), observed.body)
    assert api.written == ["mark g-0", "mark g-0-1", "ask g-0"]
    assert told.changes == (ChildChange("Draining", "Pod", "g-0"), ChildChange("Draining", "Pod", "g-0-1"))
    asked = using.asked((observed.body["metadata"]["namespace"], observed.body["metadata"]["name"]), observed.pods)
    assert asked == {"uid-g-0"} and make_plan(desired(observed, SETTINGS), observed, {}, asked).drain == plan.drain
    await using.apply(Plan(drain=plan.drain), observed.body)
    assert api.written[3:] == ["ask g-0"]
    await using.apply(Plan(replace=plan.drain), observed.body)
    assert api.written[4:] == ["delete g-0", "delete g-0-1"]


class KnownModel(ModelInfoClient):
    """Every engine has told."""

    async def fetch(self, replica: Replica) -> Replica:
        return replica


@pytest.fixture
async def fleet() -> AsyncIterator[KubernetesFleet]:
    found = KubernetesFleet(SimpleNamespace(), model_info=KnownModel())  # type: ignore[arg-type]
    found.on_deployment("ADDED", stored(namespace="default"))
    yield found
    await found.close()


async def test_a_gateway_routes_to_the_leader_of_a_whole_group(fleet: KubernetesFleet) -> None:
    def known() -> tuple[list[str], list[str]]:
        (pool,) = fleet.directory.pools
        return [f"{each.name} {each.uid} {each.host}" for each in pool.replicas], [each.name for each in pool.departing]

    leader, worker, both = pod(0, LEADER), pod(0, WORKER), ["g-0 uid-g-0 10.0.0.0"]
    fleet.on_pod("ADDED", leader)
    assert known() == ([], [])
    fleet.on_pod("ADDED", worker)
    assert known() == (both, [])
    fleet.on_pod("MODIFIED", pod(0, WORKER, ready=None))
    assert known() == ([], ["g-0"]), "its answers may still be finished"
    fleet.on_pod("MODIFIED", worker)
    assert known() == (both, [])
    fleet.on_pod("MODIFIED", pod(0, WORKER, metadata=GOING))
    assert known() == ([], ["g-0"])
    fleet.on_pod("DELETED", leader)
    assert known() == ([], []), "and a worker that is left is nobody's address"
    anew = pod(0, LEADER, metadata={"uid": "uid-2"})
    fleet.on_pod("ADDED", anew)
    assert known() == ([], ["g-0"])
    fleet.on_pod("DELETED", worker)
    fleet.on_pod("ADDED", pod(0, WORKER, metadata={"uid": "uid-3"}))
    assert known() == (["g-0 uid-2 10.0.0.0"], [])
