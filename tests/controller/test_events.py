"""Events: on change only, with what people need, and never at the cost of a reconciliation."""

from typing import Any

from fairlead.api.conditions import Condition, ConditionStatus, ConditionType, merge_conditions
from fairlead.controller.applier import ChildChange
from fairlead.controller.events import Announcement, EventRecorder, EventType, announcements, disruptions
from fairlead.controller.pod_diagnosis import Diagnosis, Stage
from fairlead.kube.client import JsonObject, KubeError

BODY: JsonObject = {"metadata": {"name": "dinghy", "namespace": "ns", "uid": "u-1", "resourceVersion": "1"}}


def status(ready: tuple[bool, str], degraded: tuple[bool, str] = (False, "AsExpected")) -> dict[str, Any]:
    conditions = [
        Condition(kind, ConditionStatus.TRUE if is_true else ConditionStatus.FALSE, reason, f"{reason}!")
        for kind, (is_true, reason) in ((ConditionType.READY, ready), (ConditionType.DEGRADED, degraded))
    ]
    return {"conditions": merge_conditions([], conditions, generation=1, time="2026-01-01T00:00:00Z")}


def told(before: dict[str, Any], after: dict[str, Any], *changes: ChildChange) -> list[tuple[str, str]]:
    return [(str(one.type), one.reason) for one in announcements(before, after, changes)]


def test_nothing_new_is_nothing_to_tell() -> None:
    assert told(status((True, "ReplicasReady")), status((True, "ReplicasReady"))) == []


def test_each_step_on_the_way_is_told_once() -> None:
    loading = status((False, "LoadingModel"))
    assert told({}, loading) == [("Normal", "LoadingModel")]
    assert told(loading, status((True, "ReplicasReady"))) == [("Normal", "ReplicasReady")]


def test_a_second_replica_that_hangs_is_told_too() -> None:
    one = status((True, "ReplicasReady"), (True, "ReplicaHangs"))
    two = status((True, "ReplicasReady"), (True, "ReplicaHangs"))
    next(each for each in two["conditions"] if each["type"] == "Degraded")["message"] += " So does b"
    assert told(one, two) == [("Warning", "ReplicaHangs")]
    assert told(two, two) == []


def test_trouble_is_a_warning_and_its_end_is_told() -> None:
    well, ill = status((True, "ReplicasReady")), status((False, "Unschedulable"), (True, "Unschedulable"))
    assert told(well, ill) == [("Warning", "Unschedulable")]
    assert told(ill, well) == [("Normal", "AsExpected"), ("Normal", "ReplicasReady")]


def test_changes_are_told_with_their_numbers_but_quiet_updates_are_not() -> None:
    same = status((True, "ReplicasReady"))
    changes = (
        ChildChange("Updated", "ConfigMap", "a"),
        ChildChange("Updated", "Deployment", "a"),
        ChildChange("Created", "Service", "a"),
        ChildChange("Scaled", "Deployment", "a", "replicas 1 → 2"),
        ChildChange("Created", "ConfigMap", "a-engine"),
    )
    found = announcements(same, same, changes)
    assert [one.message for one in found] == [
        "Updated Deployment a",
        "Created Service a, ConfigMap a-engine",
        "Scaled Deployment a (replicas 1 → 2)",
    ]


class FakeApi:
    """Keeps Events; can forget them, or refuse."""

    def __init__(self) -> None:
        self.events: dict[str, JsonObject] = {}
        self.error: KubeError | None = None

    async def create(self, resource: Any, obj: JsonObject) -> JsonObject:
        if self.error:
            raise self.error
        self.events[obj["metadata"]["name"]] = dict(obj)
        return obj

    async def patch(self, resource: Any, name: str, patch: JsonObject, namespace: str) -> JsonObject:
        if self.error:
            raise self.error
        if name not in self.events:
            raise KubeError(404, "NotFound", "expired")
        self.events[name] |= patch
        return self.events[name]


ILL = Announcement(EventType.WARNING, "Unschedulable", "no node " * 400)


async def test_an_event_names_its_object_and_its_reporter() -> None:
    api = FakeApi()
    await EventRecorder(api, "pod-1").record(BODY, ILL)  # type: ignore[arg-type]
    (event,) = api.events.values()
    assert event["metadata"]["namespace"] == "ns"
    assert event["involvedObject"]["kind"] == "LLMDeployment"
    assert event["involvedObject"]["uid"] == "u-1"
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "Unschedulable", 1)
    assert event["source"] == {"component": "fairlead-operator", "host": "pod-1"}
    assert len(event["message"]) == 1024


async def test_repetitions_count_up_one_event() -> None:
    api = FakeApi()
    recorder = EventRecorder(api, "pod-1")  # type: ignore[arg-type]
    for _ in range(3):
        await recorder.record(BODY, ILL)
    (event,) = api.events.values()
    assert event["count"] == 3


async def test_a_replica_that_somebody_takes_away_is_told_of_once() -> None:
    said = "is taken away (PreemptionByScheduler). default-scheduler: preempting to accommodate a higher priority pod"
    told = disruptions([Diagnosis("ours", Stage.DRAINING), Diagnosis("e-1", Stage.DRAINING, message=said)])
    assert told == [Announcement(EventType.NORMAL, "Disrupted", f"e-1: {said}")]
    api = FakeApi()
    recorder = EventRecorder(api, "pod-1")  # type: ignore[arg-type]
    for _ in range(3):
        await recorder.record_once(BODY, told[0])
    (event,) = api.events.values()
    assert event["count"] == 1


async def test_an_event_that_expired_is_written_anew() -> None:
    api = FakeApi()
    recorder = EventRecorder(api, "pod-1")  # type: ignore[arg-type]
    await recorder.record(BODY, ILL)
    api.events.clear()
    await recorder.record(BODY, ILL)
    (event,) = api.events.values()
    assert event["count"] == 1


async def test_an_api_that_refuses_events_is_no_failure() -> None:
    api = FakeApi()
    api.error = KubeError(403, "Forbidden", "no events")
    await EventRecorder(api, "pod-1").record(BODY, ILL)  # type: ignore[arg-type]
    assert api.events == {}
