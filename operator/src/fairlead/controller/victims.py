"""Victims: which replicas go when there are to be fewer. Pure; `plan` calls it, `applier` carries it out.

The order is: mark the victims → ask their engines to drain → lower the Deployment's count, and the ReplicaSet deletes
them. A mark is an annotation on the pod, so an operator that starts in the middle goes on where the last one stopped;
and it makes the pod the cheapest one to delete. Whether the ReplicaSet agrees is not taken for granted: a marked pod
that is left over, because another one went or the count was raised again, is deleted by us and so replaced.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from fairlead.api import names
from fairlead.controller.pod_diagnosis import Stage, diagnose, is_marked
from fairlead.fleet.pods import became_ready, is_active
from fairlead.kube.client import JsonObject

CHEAPEST = "-2147483647"
"""The smallest cost of deletion that Kubernetes takes."""
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


def choose_victims(
    pods: Sequence[JsonObject], num_wanted: int, running: Mapping[str, int], asked: Collection[str] = ()
) -> tuple[JsonObject, ...]:
    """Those that have to go for `num_wanted` to stay: marked ones first, then those that are missed least.

    `running`: requests per replica, by the pod's uid. `asked`: uids of pods that were marked, whether or not `pods`
    shows it yet.
    """
    active = [pod for pod in pods if is_active(pod)]
    ranked = sorted(active, key=lambda pod: (not _is_victim(pod, asked), *_worth(pod, running)))
    return tuple(ranked[: max(0, len(active) - num_wanted)])


def left_over(pods: Sequence[JsonObject], engine: JsonObject, asked: Collection[str] = ()) -> tuple[JsonObject, ...]:
    """Marked pods that the Deployment `engine` has no reason to delete any more."""
    if not has_acted(engine):
        return ()
    return tuple(pod for pod in pods if is_active(pod) and _is_victim(pod, asked))


def is_rolling(engine: JsonObject) -> bool:
    """Whether pods of an earlier configuration are being replaced. Kubernetes chooses then: the new pods, which are not
    ready and so would be our first victims, are not what has to go."""
    status = engine.get("status") or {}
    return (status.get("updatedReplicas") or 0) < (status.get("replicas") or 0)


def is_seen(engine: JsonObject) -> bool:
    """Whether the Deployment's controller has seen what the Deployment asks for."""
    return ((engine.get("status") or {}).get("observedGeneration") or 0) >= (engine["metadata"].get("generation") or 0)


def has_acted(engine: JsonObject) -> bool:
    """Whether the Deployment has seen its count and has not more pods than that."""
    num_pods = (engine.get("status") or {}).get("replicas") or 0
    return is_seen(engine) and num_pods <= (engine["spec"].get("replicas") or 0)


def _is_victim(pod: JsonObject, asked: Collection[str]) -> bool:
    return is_marked(pod) or pod["metadata"]["uid"] in asked


def _worth(pod: JsonObject, running: Mapping[str, int]) -> tuple[bool, int, bool, bool, int, float, str]:
    """Less goes first. The ReplicaSet looks at the first three before it looks at the cost, so they come first here."""
    metadata, phase = pod["metadata"], (pod.get("status") or {}).get("phase", "Pending")
    created = datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()
    return (
        bool((pod.get("spec") or {}).get("nodeName")),
        _PHASES.get(phase, 1),
        became_ready(pod) is not None,
        diagnose(pod).stage is not Stage.FAILING,
        running.get(metadata["uid"], 0),
        -created,
        metadata["name"],
    )


def mark(time: str) -> dict[str, str]:
    """The annotations that make a pod a victim. `time`: RFC 3339."""
    return {names.ANNOTATION_DRAIN: time, names.ANNOTATION_DELETION_COST: CHEAPEST}
