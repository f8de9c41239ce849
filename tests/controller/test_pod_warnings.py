"""What keeps a pod from being created: when the API is asked, how often, and which of a pod's Events is told."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fairlead.controller.pod_diagnosis import PodWarning
from fairlead.controller.pod_starts import (
    ASK_AGAIN_SECONDS,
    MAX_PODS,
    MAX_QUESTIONS,
    REFUSED_SECONDS,
    SLOW_SECONDS,
    PodWarnings,
    next_look,
    what_holds_it_up,
)
from fairlead.kube.client import JsonObject, KubeError
from fairlead.kube.resources import EVENTS, Resource

START = datetime(2026, 6, 1, 12, tzinfo=UTC)
CREATING = {"waiting": {"reason": "ContainerCreating"}}
SUMMARY = "Unable to attach or mount volumes: unmounted volumes=[creds]: timed out waiting for the condition"
NO_SECRET = PodWarning("FailedMount", 'MountVolume.SetUp failed for volume "creds" : secret "s" not found')


def pod(name: str = "p", state: JsonObject = CREATING, namespace: str = "ns") -> JsonObject:
    """Was given its node at START."""
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-06-01T12:00:00Z"}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"},
        "spec": {"nodeName": "n"},
        "status": {"conditions": [scheduled], "containerStatuses": [{"name": "engine", "state": state}]},
    }


def event(second: int, reason: str, message: str = "", type: str = "Warning", **fields: Any) -> JsonObject:
    return {
        "type": type,
        "reason": reason,
        "message": message,
        "lastTimestamp": f"2026-06-01T12:00:{second:02}Z",
    } | fields


class Api:
    """Events of pods by uid, a clock, and who was asked about."""

    def __init__(self, **events: list[JsonObject]) -> None:
        self.events, self.asked, self.seconds = events, [], 0.0
        self.error: KubeError | None = None

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    async def list(self, resource: Resource, namespace: str, *, field_selector: str) -> JsonObject:
        assert resource is EVENTS
        field, _, uid = field_selector.partition("=")
        assert field == "involvedObject.uid"
        self.asked.append(f"{namespace}/{uid}")
        if self.error is not None:
            raise self.error
        return {"items": self.events.get(uid.removeprefix("uid-"), [])}


def reader(api: Api) -> PodWarnings:
    return PodWarnings(api, api.now)  # type: ignore[arg-type]


async def about(warnings: PodWarnings, pods: list[JsonObject]) -> dict[str, PodWarning]:
    await warnings.ask(pods)
    return warnings.known(pods)


async def test_a_slow_pod_is_asked_about_and_again_after_a_while() -> None:
    api = Api(p=[event(5, *_told(NO_SECRET))])
    warnings = reader(api)
    api.seconds = SLOW_SECONDS - 1
    assert await about(warnings, [pod()]) == {}
    assert api.asked == [], "a node may take that long"
    api.seconds = SLOW_SECONDS
    for _ in range(3):
        assert await about(warnings, [pod()]) == {"uid-p": NO_SECRET}
    assert api.asked == ["ns/uid-p"], "the answer is kept"
    api.events["p"] = []
    api.seconds += ASK_AGAIN_SECONDS
    assert await about(warnings, [pod()]) == {}
    assert len(api.asked) == 2


@pytest.mark.parametrize(
    "other",
    [
        pod(state={"running": {}}),
        pod(state={"terminated": {"exitCode": 1}}),
        pod(state={"waiting": {"reason": "ImagePullBackOff"}}),
        {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {}},
    ],
)
async def test_others_are_not_asked_about(other: JsonObject) -> None:
    api = Api()
    api.seconds = 1e6
    assert await about(reader(api), [other]) == {}
    assert api.asked == []


async def test_init_containers_that_run_show_that_the_node_has_prepared_the_pod() -> None:
    api, slow = Api(), pod(state={"waiting": {"reason": "PodInitializing"}})
    api.seconds = 1e6
    slow["status"]["initContainerStatuses"] = [{"name": "fetch", "state": {"running": {}}}]
    await about(reader(api), [slow])
    assert api.asked == []
    slow["status"]["initContainerStatuses"] = [{"name": "fetch", "state": {"waiting": {"reason": "PodInitializing"}}}]
    await about(reader(api), [slow])
    assert api.asked == ["ns/uid-p"]


async def test_questions_are_few_however_many_pods_are_slow() -> None:
    api = Api()
    warnings, api.seconds = reader(api), SLOW_SECONDS
    await about(warnings, [pod(f"a{number}") for number in range(100)])
    assert len(api.asked) == MAX_PODS, "of one LLMDeployment"
    for number in range(100):
        await about(warnings, [pod(f"b{number}")])
    assert len(api.asked) == MAX_QUESTIONS, "of all"
    api.seconds += ASK_AGAIN_SECONDS
    await about(warnings, [pod("b99")])
    assert api.asked[-1] == "ns/uid-b99"


async def test_without_the_right_people_read_what_they_read_before(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="fairlead")
    api = Api(p=[event(5, *_told(NO_SECRET))])
    warnings, api.seconds, api.error = reader(api), SLOW_SECONDS, KubeError(403, "Forbidden", "may not list events")
    for _ in range(3):
        assert await about(warnings, [pod(), pod("q")]) == {}
        api.seconds += ASK_AGAIN_SECONDS
    assert api.asked == ["ns/uid-p"], "a refusal is taken for an answer"
    assert [record.levelname for record in caplog.records if record.name.startswith("fairlead")] == ["DEBUG"]
    await about(warnings, [pod("r", namespace="elsewhere")])
    assert api.asked[-1] == "elsewhere/uid-r", "a right is one namespace's"
    api.error = None
    api.seconds += REFUSED_SECONDS
    assert await about(warnings, [pod()]) == {"uid-p": NO_SECRET}


async def test_an_api_that_cannot_be_asked_changes_nothing() -> None:
    api = Api(p=[event(5, *_told(NO_SECRET))])
    warnings, api.seconds = reader(api), SLOW_SECONDS
    await about(warnings, [pod()])
    api.seconds, api.error = api.seconds + ASK_AGAIN_SECONDS, KubeError(0, "Unreachable", "no answer in time")
    assert await about(warnings, [pod()]) == {"uid-p": NO_SECRET}
    assert len(api.asked) == 2


def _told(warning: PodWarning) -> tuple[str, str]:
    return warning.reason, warning.message


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], None),
        ([event(1, "Scheduled", type="Normal")], None),
        ([event(1, "FailedScheduling", "0/1 nodes"), event(2, "Scheduled", type="Normal")], None),
        ([event(9, "FailedMount", "new"), event(3, "FailedAttachVolume", "old")], "new"),
        ([event(9, "FailedMount", SUMMARY), event(3, "FailedMount", "why")], "why"),
        ([event(9, "FailedMount", SUMMARY)], SUMMARY),
        ([event(3, "FailedMount", "then"), event(4, "Pulling", type="Normal")], None),
        ([event(4, "FailedCreatePodSandBox", "now"), event(3, "Pulling", type="Normal")], "now"),
        ([event(0, "X", "old"), event(0, "NetworkNotReady", "new", lastTimestamp=None,
          eventTime="2026-06-01T12:00:07.123456Z")], "new"),
        ([event(0, "X", "old"), event(0, "Y", "again", lastTimestamp=None, eventTime="2026-06-01T11:00:00.5Z",
          series={"count": 2, "lastObservedTime": "2026-06-01T12:00:09.5Z"})], "again"),
        ([{"type": "Warning"}], None),
    ],
)  # fmt: skip
def test_the_newest_cause_that_still_holds_is_told(events: list[JsonObject], expected: str | None) -> None:
    for seen in (events, events[::-1]):
        found = what_holds_it_up(seen)
        assert (found is None) is (expected is None)
        assert found is None or found.message.startswith(expected or "")


def test_a_pod_in_creation_is_looked_at_when_it_becomes_slow_and_then_regularly() -> None:
    assert next_look([], START) is None
    assert next_look([pod(state={"running": {}})], START) is None
    assert next_look([pod()], START + timedelta(seconds=10)) == SLOW_SECONDS - 10
    assert next_look([pod()], START + timedelta(hours=1)) == ASK_AGAIN_SECONDS
