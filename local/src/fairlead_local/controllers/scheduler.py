"""The scheduler: binds pods to the node when what they ask for is there, and says what is missing when it is not."""

from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal

from fairlead.api.pod_spec import lasting_containers
from fairlead.api.quantities import parse_quantity
from fairlead_local.apiserver import selectors
from fairlead_local.apiserver.operations import Operations, WriteOptions
from fairlead_local.apiserver.resources import CLAIMS, NODES, PODS
from fairlead_local.apiserver.status import Json
from fairlead_local.apiserver.store import Change, ChangeType
from fairlead_local.controllers.conditions import condition, find, with_condition
from fairlead_local.controllers.events import ObjectEvents
from fairlead_local.controllers.loop import Key

SCHEDULER_NAME = "default-scheduler"
_OPTIONS = WriteOptions(manager="kube-scheduler")


class PodScheduler:
    """Looks at every pod without a node again when pods, nodes or claims change."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._recorder = ObjectEvents(operations, SCHEDULER_NAME)

    def keys(self, change: Change) -> Iterable[Key]:
        metadata = change.object["metadata"]
        if change.resource == PODS.qualified and change.type is ChangeType.ADDED:
            yield metadata["namespace"], metadata["name"]
        elif change.resource in (NODES.qualified, CLAIMS.qualified) or _frees_room(change):
            for pod in self._operations.list(PODS):
                if not pod["spec"].get("nodeName"):
                    yield pod["metadata"]["namespace"], pod["metadata"]["name"]

    def reconcile(self, key: Key) -> float | None:
        namespace, name = key
        pod = self._operations.find(PODS, namespace, name)
        if pod is None or pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
            return None
        if pod["spec"].get("schedulerName") != SCHEDULER_NAME or pod["spec"].get("schedulingGates"):
            return None
        nodes = self._operations.list(NODES)
        problem = self._claim_problem(pod)
        if problem:
            self._refuse(pod, f"0/{len(nodes)} nodes are available: {problem}.")
            return None
        reasons = {node["metadata"]["name"]: self._reasons(pod, node) for node in nodes}
        fitting = next((node for node, found in reasons.items() if not found), None)
        if fitting is None:
            self._refuse(pod, _refusal(reasons.values()))
        else:
            self._bind(pod, fitting)
        return None

    def _claim_problem(self, pod: Json) -> str | None:
        for volume in pod["spec"].get("volumes") or ():
            if reference := volume.get("persistentVolumeClaim"):
                claim = self._operations.find(CLAIMS, pod["metadata"]["namespace"], reference["claimName"])
                if claim is None:
                    return f'persistentvolumeclaim "{reference["claimName"]}" not found'
                if (claim.get("status") or {}).get("phase") != "Bound":
                    return "pod has unbound immediate PersistentVolumeClaims"
        return None

    def _reasons(self, pod: Json, node: Json) -> list[str]:
        """Why the pod cannot run on this node; empty when it can."""
        if (node.get("spec") or {}).get("unschedulable"):
            return ["node(s) were unschedulable"]
        if not _selects(pod["spec"], node["metadata"].get("labels") or {}):
            return ["node(s) didn't match Pod's node affinity/selector"]
        others = [p for p in self._operations.list(PODS) if _occupies(p, node["metadata"]["name"])]
        allocatable = node["status"]["allocatable"]
        if len(others) >= int(allocatable["pods"]):
            return ["Too many pods"]
        free = {name: parse_quantity(quantity) for name, quantity in allocatable.items()}
        for other in others:
            for name, amount in requests(other).items():
                free[name] = free.get(name, Decimal(0)) - amount
        wanted = requests(pod)
        return [f"Insufficient {name}" for name, amount in sorted(wanted.items()) if amount > free.get(name, 0)]

    def _bind(self, pod: Json, node: str) -> None:
        metadata = pod["metadata"]
        bound = {**pod, "spec": {**pod["spec"], "nodeName": node}}
        scheduled = with_condition((pod.get("status") or {}).get("conditions") or [], condition("PodScheduled", "True"))
        # The condition comes first: whoever sees the node's name may write the rest of the status.
        self._operations.set_status(PODS, pod, {**(pod.get("status") or {}), "conditions": scheduled}, _OPTIONS)
        text = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {node}"
        self._recorder.normal(pod, "Scheduled", text)
        del bound["metadata"]
        self._operations.edit(PODS, metadata["namespace"], metadata["name"], lambda live: {**live, **bound}, _OPTIONS)

    def _refuse(self, pod: Json, message: str) -> None:
        status = pod.get("status") or {}
        new = condition("PodScheduled", "False", "Unschedulable", message)
        old = find(status.get("conditions") or (), "PodScheduled")
        if old and old.get("message") == message:
            return
        conditions = with_condition(status.get("conditions") or [], new)
        self._operations.set_status(PODS, pod, {**status, "phase": "Pending", "conditions": conditions}, _OPTIONS)
        self._recorder.warning(pod, "FailedScheduling", message)


def requests(pod: Json) -> dict[str, Decimal]:
    """What a pod's containers ask for that run as long as it does."""
    total: dict[str, Decimal] = {}
    for container in lasting_containers(pod["spec"]):
        for name, quantity in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = total.get(name, Decimal(0)) + parse_quantity(quantity)
    return total


def _refusal(reasons: Iterable[Sequence[str]]) -> str:
    """`0/1 nodes are available: 1 Insufficient nvidia.com/gpu.`"""
    found = list(reasons)
    if not found:
        return "no nodes available to schedule pods"
    counts = Counter(reason for node in found for reason in node)
    return f"0/{len(found)} nodes are available: {', '.join(f'{n} {why}' for why, n in sorted(counts.items()))}."


def _frees_room(change: Change) -> bool:
    """Whether a pod has gone or is done."""
    if change.resource != PODS.qualified:
        return False
    phase = (change.object.get("status") or {}).get("phase")
    return change.type is ChangeType.DELETED or phase in ("Succeeded", "Failed")


def _occupies(pod: Json, node: str) -> bool:
    phase = (pod.get("status") or {}).get("phase")
    return bool(pod["spec"].get("nodeName") == node) and phase not in ("Succeeded", "Failed")


def _selects(spec: Json, labels: dict[str, str]) -> bool:
    """Whether a node with these labels is one the pod accepts: nodeSelector and required node affinity."""
    if not (spec.get("nodeSelector") or {}).items() <= labels.items():
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any(selectors.from_object(term).matches(labels) for term in required.get("nodeSelectorTerms") or ())
