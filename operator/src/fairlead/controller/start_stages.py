"""How long a replica took to become ready, by stage, from its pod's status. Pure; in whole seconds, as Kubernetes tells
time."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from fairlead.api import names
from fairlead.api.conditions import find_condition
from fairlead.api.pod_spec import lasting_statuses
from fairlead.fleet.pods import became_ready


class StartStage(StrEnum):
    """In the order in which a replica goes through them."""

    SCHEDULE = "schedule"
    """Until a node is chosen."""
    IMAGE = "image"
    """Until its containers run: images pulled, volumes mounted."""
    DOWNLOAD = "download"
    """Of the model, and of what guesses tokens beside it; absent where none is downloaded."""
    LOAD = "load"
    """Until the engine answers: weights, compilation, warm-up. The engine's own metrics take it apart."""


def start_seconds(pod: Mapping[str, Any]) -> float | None:
    """From creation to ready; None = not ready, or perhaps ready before: a restarted container says nothing about a
    start."""
    if any(container.get("restartCount") for container in lasting_statuses(pod)):
        return None
    return _between(pod["metadata"].get("creationTimestamp"), became_ready(pod))


def download_seconds(pod: Mapping[str, Any]) -> float:
    """What the last attempts at its downloads took; 0 where there was none."""
    return sum(_between(began, ended) or 0.0 for began, ended in _downloads(pod))


def start_stages(pod: Mapping[str, Any]) -> dict[StartStage, float] | None:
    """None as in `start_seconds`. Time lost in failed downloads counts as `image`."""
    total = start_seconds(pod)
    if total is None:
        return None
    status = pod.get("status") or {}
    scheduled = find_condition(status, "PodScheduled").get("lastTransitionTime")
    engine = _of_name(lasting_statuses(pod), names.ENGINE_CONTAINER)
    running = ((engine.get("state") or {}).get("running") or {}).get("startedAt")
    schedule = _between(pod["metadata"]["creationTimestamp"], scheduled) or 0.0
    load = _between(running, became_ready(pod)) or 0.0
    download = download_seconds(pod)
    stages = {
        StartStage.SCHEDULE: schedule,
        StartStage.IMAGE: max(0.0, total - schedule - download - load),
        StartStage.DOWNLOAD: download,
        StartStage.LOAD: load,
    }
    if not any(ended for _, ended in _downloads(pod)):
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
