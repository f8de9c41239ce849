"""ColdStart: how long a replica takes to start, measured on the pods of one LLMDeployment. Pure.

Who calls it: the autoscaler, each tick; what it measures is how far ahead the autoscaler has to look.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fairlead.fleet.pods import became_ready

WEIGHT = 0.5
"""Of the newest pod in the mean: the second start on a node is often much faster than the first, which had to pull the
image, and it is the next start that matters."""


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Immutable; `observe` makes the next one."""

    seconds: float | None = None
    """Mean of creation → ready; None = no pod was seen to start."""
    measured: frozenset[str] = frozenset()
    """Uids of the pods it has been measured on, of those that still exist."""

    @classmethod
    def resumed(cls, seconds: float | None, pods: Iterable[Mapping[str, Any]]) -> "ColdStart":
        """As an earlier process left it: with a figure of its own, the pods that are ready by now are part of it."""
        ready = {pod["metadata"]["uid"] for pod in pods if became_ready(pod) is not None}
        return cls(seconds, frozenset(ready if seconds is not None else ()))

    def observe(self, pods: Iterable[Mapping[str, Any]]) -> "ColdStart":
        """With what pods that became ready have taken, oldest first."""
        seconds, seen = self.seconds, list(pods)
        measured = self.measured & {pod["metadata"]["uid"] for pod in seen}
        for pod in seen:
            took = None if pod["metadata"]["uid"] in measured else start_seconds(pod)
            if took is not None:
                measured |= {pod["metadata"]["uid"]}
                seconds = took if seconds is None else seconds + WEIGHT * (took - seconds)
        return ColdStart(seconds, measured)


def start_seconds(pod: Mapping[str, Any]) -> float | None:
    """Seconds from creation to ready, in whole ones as Kubernetes tells time; None for a pod that is not ready, or that
    may have been ready before: a container that was restarted says nothing about a start."""
    containers = (pod.get("status") or {}).get("containerStatuses") or []
    created, ready = pod["metadata"].get("creationTimestamp"), became_ready(pod)
    if not created or not ready or any(container.get("restartCount") for container in containers):
        return None
    return max(0.0, (datetime.fromisoformat(ready) - datetime.fromisoformat(created)).total_seconds())
