"""How replicas start: why a node cannot create a pod's containers, and seconds of each stage of a start.

A pod's status only says `ContainerCreating`; the kubelet's reasons are in Events, which Cluster asks for when a pod
takes long. `pod_diagnosis` interprets warnings. Without the right to ask, messages stay as before. Stages come from the
pod's status, in whole seconds, as Kubernetes tells time.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from fairlead.api import names
from fairlead.api.conditions import find_condition
from fairlead.api.pod_spec import lasting_statuses
from fairlead.controller.pod_diagnosis import PodWarning, seconds_in_creation
from fairlead.fleet.pods import ReplicaPods
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.resources import EVENTS

logger = logging.getLogger(__name__)

SLOW_SECONDS = 30.0
"""Time of a node to pull images and attach volumes before Events are asked for."""
ASK_AGAIN_SECONDS = 30.0
"""Between two questions about one pod."""
MAX_PODS = 3
"""Asked-about pods of one LLMDeployment: its pods are alike, and conditions quote one pod."""
MAX_QUESTIONS = 60
"""Within `ASK_AGAIN_SECONDS`, about all pods: when a cluster's storage fails, the API server has other work."""
REFUSED_SECONDS = 600.0
"""Pause after a namespace refuses its Events."""
REMEMBERED_SECONDS = 3_600.0
"""Lifetime of unused answers: that of Kubernetes' Events."""

_PREPARED = ("Pulling", "Pulled", "Created", "Started")
"""Events that the kubelet records after a pod's volumes are mounted and its sandbox runs."""
_SUMMARY = "Unable to attach or mount volumes"
"""Begins the kubelet's message that names missing volumes without a cause."""


@dataclass(frozen=True, slots=True)
class _EventsAnswer:
    asked: datetime
    warning: PodWarning | None


class PodWarnings:
    """The newest warnings about pods slow in creation."""

    def __init__(self, client: KubeClient, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._client = client
        self._now = now
        self._answers: dict[str, _EventsAnswer] = {}
        """By the pod's uid."""
        self._refused: dict[str, datetime] = {}
        """Last refusal to read Events, by namespace."""

    def known(self, pods: Iterable[JsonObject]) -> dict[str, PodWarning]:
        """Last warnings by the pod's uid; pods without one are absent. A pod may have recovered, as its status then
        says."""
        found = ((uid, self._answers.get(uid)) for pod in pods if (uid := pod["metadata"].get("uid")))
        return {uid: answer.warning for uid, answer in found if answer is not None and answer.warning is not None}

    async def ask(self, pods: Iterable[JsonObject]) -> None:
        """Asks about slow pods without a recent answer. Never raises a KubeError."""
        now = self._now()
        old, permitted, recent = (
            now - timedelta(seconds=seconds) for seconds in (REMEMBERED_SECONDS, REFUSED_SECONDS, ASK_AGAIN_SECONDS)
        )
        self._answers = {uid: answer for uid, answer in self._answers.items() if answer.asked > old}
        self._refused = {namespace: asked for namespace, asked in self._refused.items() if asked > permitted}
        ages = ((pod["metadata"], seconds_in_creation(pod, now)) for pod in pods)
        slow = [metadata for metadata, age in ages if age is not None and age >= SLOW_SECONDS]
        for metadata in slow[:MAX_PODS]:
            uid, namespace = metadata["uid"], metadata["namespace"]
            known = self._answers.get(uid)
            num_asked = sum(answer.asked > recent for answer in self._answers.values())
            is_fresh = known is not None and known.asked > recent
            if is_fresh or namespace in self._refused or num_asked >= MAX_QUESTIONS:
                continue
            self._answers[uid] = _EventsAnswer(now, known.warning if known else None)
            try:
                events = await self._client.list(EVENTS, namespace, field_selector=f"involvedObject.uid={uid}")
            except KubeError as e:
                logger.debug("the events of pod %s/%s cannot be read: %s", namespace, metadata["name"], e)
                if e.status == 403:
                    self._refused[namespace] = now
            else:
                self._answers[uid] = _EventsAnswer(now, what_holds_it_up(events["items"]))


def what_holds_it_up(events: Sequence[Mapping[str, Any]]) -> PodWarning | None:
    """The newest warning among a pod's Events that names a cause; None = the node has got past it. Pure."""
    prepared = max((_time(event) for event in events if event.get("reason") in _PREPARED), default="")
    warnings = [
        event
        for event in events
        # The scheduler's are about the time before the pod had a node.
        if event.get("type") == "Warning" and event.get("reason") != "FailedScheduling" and _time(event) > prepared
    ]
    if not warnings:
        return None
    newest = max(warnings, key=lambda event: (not _message(event).startswith(_SUMMARY), _time(event)))
    return PodWarning(str(newest.get("reason") or ""), _message(newest))


def next_look(pods: Iterable[JsonObject], now: datetime) -> float | None:
    """Seconds until the next question about pods in creation, which no watch triggers; None = no such pods. Pure."""
    ages = [seconds for pod in pods if (seconds := seconds_in_creation(pod, now)) is not None]
    return min((SLOW_SECONDS - age if age < SLOW_SECONDS else ASK_AGAIN_SECONDS for age in ages), default=None)


def _time(event: Mapping[str, Any]) -> str:
    """The Event's last time, to the second: RFC 3339 in UTC, so text sorts as time does. The newer API uses `eventTime`
    and `series`, with fractions, instead of `lastTimestamp`."""
    times = (
        event.get("lastTimestamp"),
        (event.get("series") or {}).get("lastObservedTime"),
        event.get("eventTime"),
        (event.get("metadata") or {}).get("creationTimestamp"),
    )
    return max(str(time)[:19] for time in times if time) if any(times) else ""


def _message(event: Mapping[str, Any]) -> str:
    return str(event.get("message") or "")


class StartStage(StrEnum):
    """In the order of a start."""

    SCHEDULE = "schedule"
    """Until a node is chosen."""
    IMAGE = "image"
    """Until its containers run: images pulled, volumes mounted."""
    DOWNLOAD = "download"
    """Of the model and the speculative model; absent without a download."""
    LOAD = "load"
    """Until the engine answers: weights, compilation, warm-up. The engine's own metrics take it apart."""


def start_seconds(replica: ReplicaPods) -> float | None:
    """From creation to ready; None = not ready, or perhaps ready before: a restarted container says nothing about a
    start."""
    if any(container.get("restartCount") for pod in replica.pods for container in lasting_statuses(pod)):
        return None
    return _between(replica.created, replica.became_ready)


def download_seconds(replica: ReplicaPods) -> float:
    """What the last attempts at the downloads of a pod took, of the slowest one; 0 where there was none."""
    return max(sum(_between(began, ended) or 0.0 for began, ended in _downloads(pod)) for pod in replica.pods)


def start_stages(replica: ReplicaPods) -> dict[StartStage, float] | None:
    """None as in `start_seconds`. A stage ends with the last pod's. Time lost in failed downloads counts as `image`."""
    total = start_seconds(replica)
    if total is None:
        return None
    conditions = (find_condition(pod.get("status") or {}, "PodScheduled") for pod in replica.pods)
    scheduled = max(condition.get("lastTransitionTime") or "" for condition in conditions)
    engines = (_of_name(lasting_statuses(pod), names.ENGINE_CONTAINER) for pod in replica.pods)
    running = max(((each.get("state") or {}).get("running") or {}).get("startedAt") or "" for each in engines)
    schedule = _between(replica.created, scheduled) or 0.0
    load = _between(running, replica.became_ready) or 0.0
    download = download_seconds(replica)
    stages = {
        StartStage.SCHEDULE: schedule,
        StartStage.IMAGE: max(0.0, total - schedule - download - load),
        StartStage.DOWNLOAD: download,
        StartStage.LOAD: load,
    }
    if not any(ended for pod in replica.pods for _, ended in _downloads(pod)):
        del stages[StartStage.DOWNLOAD]
    return stages


def _downloads(pod: Mapping[str, Any]) -> list[tuple[str | None, str | None]]:
    """When each began and ended."""
    found = (pod.get("status") or {}).get("initContainerStatuses") or ()
    containers = (_of_name(found, name) for name in names.DOWNLOAD_CONTAINERS)
    ended = [(each.get("state") or {}).get("terminated") or {} for each in containers]
    return [(each.get("startedAt"), each.get("finishedAt")) for each in ended]


def _of_name(statuses: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    return next((each for each in statuses if each.get("name") == name), {})


def _between(earlier: str | None, later: str | None) -> float | None:
    """Seconds; None where either is not told."""
    if not earlier or not later:
        return None
    return max(0.0, (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds())
