"""The ReplicaSet controller: as many pods as wanted, from one template."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from fairlead.api.pod_spec import sidecars
from fairlead.fleet.pods import became_ready, is_active
from fairlead_local.apiserver import selectors
from fairlead_local.apiserver.metadata import (
    DeleteOptions,
    controller_reference,
    is_owned_by,
    owner_references,
    with_metadata,
)
from fairlead_local.apiserver.operations import Operations
from fairlead_local.apiserver.resources import PODS, REPLICA_SETS
from fairlead_local.apiserver.status import Json, StatusError
from fairlead_local.apiserver.store import Change, key_of
from fairlead_local.apiserver.times import condition, conditions_of, parse_time, seconds_since, with_condition
from fairlead_local.controllers.controller import Controller, Key

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASE_RANK = {"Pending": 0, "Unknown": 1, "Running": 2}
_INTEGER = re.compile(r"-[0-9]+|0|[1-9][0-9]*")


class ReplicaSetController(Controller):
    """Creates and deletes pods of ReplicaSets, and counts them in the status.

    Matching pods without a controller are adopted; pods with labels that no longer match are released and replaced.
    """

    manager = "replicaset-controller"

    def keys(self, change: Change) -> Iterable[Key]:
        metadata = change.object["metadata"]
        if change.resource == REPLICA_SETS.qualified:
            yield key_of(change.object)
        elif change.resource == PODS.qualified:
            for state in (change.object, change.previous):
                for reference in owner_references(state) if state else ():
                    if reference["kind"] == "ReplicaSet":
                        yield metadata["namespace"], reference["name"]
            if not any(reference.get("controller") for reference in owner_references(change.object)):
                for replica_set in self._operations.list(REPLICA_SETS, metadata["namespace"]):
                    if selectors.from_object(replica_set["spec"]["selector"]).matches(metadata.get("labels")):
                        yield metadata["namespace"], replica_set["metadata"]["name"]

    def reconcile(self, key: Key) -> float | None:
        replica_set = self._operations.find(REPLICA_SETS, *key)
        if replica_set is None:
            return None
        failure = None
        if "deletionTimestamp" not in replica_set["metadata"]:
            self._adopt_and_release(replica_set)
            failure = self._scale(replica_set, active_pods(self._operations, replica_set))
        pods = active_pods(self._operations, replica_set)
        self._write_status(replica_set, pods, failure)
        return seconds_until_available(replica_set["spec"].get("minReadySeconds", 0), pods)

    def _adopt_and_release(self, replica_set: Json) -> None:
        metadata, selector = replica_set["metadata"], selectors.from_object(replica_set["spec"]["selector"])
        for pod in self._operations.list(PODS, metadata["namespace"], selector):
            references = owner_references(pod)
            if "deletionTimestamp" not in pod["metadata"] and not any(ref.get("controller") for ref in references):
                self._set_owners(pod, [*references, controller_reference(replica_set)])
        for pod in active_pods(self._operations, replica_set):
            if not selector.matches(pod["metadata"].get("labels")):
                self._set_owners(pod, [ref for ref in owner_references(pod) if ref["uid"] != metadata["uid"]])

    def _set_owners(self, pod: Json, references: list[Json]) -> None:
        changed = with_metadata(pod, ownerReferences=references)
        self._operations.update(PODS, *key_of(pod), changed, self._options)

    def _scale(self, replica_set: Json, pods: Sequence[Json]) -> str | None:
        """Creates or deletes the difference. Returns the problem of a failed creation."""
        missing = replica_set["spec"].get("replicas", 1) - len(pods)
        for _ in range(missing):
            try:
                self._create_pod(replica_set)
            except StatusError as error:
                self._recorder.warning(replica_set, "FailedCreate", f"Error creating: {error}")
                return str(error)
        for pod in victims(pods, -missing):
            name = pod["metadata"]["name"]
            self._operations.delete(PODS, *key_of(pod), DeleteOptions())
            self._recorder.normal(replica_set, "SuccessfulDelete", f"Deleted pod: {name}")
        return None

    def _create_pod(self, replica_set: Json) -> None:
        metadata, template = replica_set["metadata"], replica_set["spec"]["template"]
        meta = template.get("metadata") or {}
        pod = {
            "metadata": {
                "generateName": f"{metadata['name']}-",
                **{field: meta[field] for field in ("labels", "annotations", "finalizers") if meta.get(field)},
                "ownerReferences": [controller_reference(replica_set)],
            },
            "spec": template["spec"],
        }
        created = self._operations.create(PODS, metadata["namespace"], pod, self._options).object
        self._recorder.normal(replica_set, "SuccessfulCreate", f"Created pod: {created['metadata']['name']}")

    def _write_status(self, replica_set: Json, pods: Sequence[Json], failure: str | None) -> None:
        spec, metadata = replica_set["spec"], replica_set["metadata"]
        labels = (spec["template"].get("metadata") or {}).get("labels") or {}
        counts = {
            "replicas": len(pods),
            "fullyLabeledReplicas": sum(labels.items() <= (p["metadata"].get("labels") or {}).items() for p in pods),
            "readyReplicas": sum(map(is_ready, pods)),
            "availableReplicas": sum(is_available(pod, spec.get("minReadySeconds", 0)) for pod in pods),
        }
        status = {name: count for name, count in counts.items() if count or name == "replicas"}
        status["observedGeneration"] = metadata["generation"]
        old = conditions_of(replica_set)
        conditions = [c for c in old if c["type"] != "ReplicaFailure"]
        if failure:
            conditions = with_condition(old, condition("ReplicaFailure", "True", "FailedCreate", failure))
        if conditions:
            status["conditions"] = conditions
        self._operations.set_status(REPLICA_SETS, replica_set, status, self._options)


def active_pods(operations: Operations, replica_set: Json) -> list[Json]:
    """Pods owned by the ReplicaSet, except deleted and finished pods."""
    metadata = replica_set["metadata"]
    pods = operations.list(PODS, metadata["namespace"])
    return [pod for pod in pods if is_owned_by(pod, metadata["uid"]) and is_active(pod)]


def victims(pods: Sequence[Json], count: int) -> list[Json]:
    """The first `count` pods to go: unassigned, pending, not ready, cheap, lately ready, often restarted, young.

    The order of `ActivePodsWithRanks` in Kubernetes, without the rank by pods per node (the node is the only node);
    times are compared exactly, not by logarithm.
    """
    return sorted(pods, key=_worth)[: max(0, count)]


def _worth(pod: Json) -> tuple[bool, int, bool, int, float, int, int, float]:
    status, metadata = pod.get("status") or {}, pod["metadata"]
    beside = {container["name"] for container in sidecars(pod["spec"])}
    of_sidecars = (each for each in status.get("initContainerStatuses") or () if each["name"] in beside)
    ready_since = became_ready(pod)
    return (
        bool(pod["spec"].get("nodeName")),
        _PHASE_RANK.get(status.get("phase", "Pending"), 1),
        is_ready(pod),
        _deletion_cost(metadata.get("annotations") or {}),
        -parse_time(ready_since).timestamp() if ready_since else -math.inf,
        -_most_restarts(status.get("containerStatuses") or ()),
        -_most_restarts(of_sidecars),
        -parse_time(metadata["creationTimestamp"]).timestamp(),
    )


def _most_restarts(statuses: Iterable[Json]) -> int:
    return max((status.get("restartCount", 0) for status in statuses), default=0)


def _deletion_cost(annotations: Mapping[str, str]) -> int:
    """As in Kubernetes: a text that is no 32-bit integer, or unusual (`+1`, `007`), costs nothing."""
    text = annotations.get(DELETION_COST, "0")
    cost = int(text) if _INTEGER.fullmatch(text) else 0
    return cost if -(2**31) <= cost < 2**31 else 0


def is_ready(pod: Json) -> bool:
    """Whether the pod's Ready condition is True."""
    return became_ready(pod) is not None


def is_available(pod: Json, min_ready_seconds: int) -> bool:
    """Whether the pod has been ready for `min_ready_seconds`."""
    return is_ready(pod) and seconds_since(became_ready(pod)) >= min_ready_seconds


def seconds_until_available(min_ready_seconds: int, pods: Iterable[Json]) -> float | None:
    """Seconds until the next ready pod becomes available; None = no such pod."""
    waits = [min_ready_seconds - seconds_since(became_ready(pod)) for pod in pods if is_ready(pod)]
    return min((wait for wait in waits if wait > 0), default=None)
