"""Bindings before a pod can run: pods to the node, within its resources, and PersistentVolumeClaims to folders."""

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path

from fairlead.api.conditions import find_condition
from fairlead.api.pod_spec import lasting_containers
from fairlead.api.quantities import parse_quantity
from fairlead.fleet.pods import is_finished
from fairlead_local.apiserver import selectors
from fairlead_local.apiserver.operations import Operations, WriteOptions
from fairlead_local.apiserver.resources import CLAIMS, NODES, PODS
from fairlead_local.apiserver.status import Json
from fairlead_local.apiserver.store import Change, ChangeType, key_of
from fairlead_local.apiserver.times import condition, conditions_of, with_condition
from fairlead_local.controllers.controller import Controller, Key

SCHEDULER_NAME = "default-scheduler"
_OPTIONS = WriteOptions(manager="kube-scheduler")


class PodScheduler(Controller):
    """Looks at every pod without a node again when pods, nodes or claims change."""

    manager = SCHEDULER_NAME

    def keys(self, change: Change) -> Iterable[Key]:
        is_pod = change.resource == PODS.qualified
        if is_pod and change.type is ChangeType.ADDED:
            yield key_of(change.object)
        elif change.resource in (NODES.qualified, CLAIMS.qualified) or (
            is_pod and (change.type is ChangeType.DELETED or is_finished(change.object))
        ):
            for pod in self._operations.list(PODS):
                if not pod["spec"].get("nodeName"):
                    yield key_of(pod)

    def reconcile(self, key: Key) -> float | None:
        pod = self._operations.find(PODS, *key)
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
            counts = sorted(Counter(why for found in reasons.values() for why in found).items())
            listed = ", ".join(f"{number} {why}" for why, number in counts)
            text = f"0/{len(nodes)} nodes are available: {listed}." if nodes else "no nodes available to schedule pods"
            self._refuse(pod, text)
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
        """Reasons against the node."""
        if (node.get("spec") or {}).get("unschedulable"):
            return ["node(s) were unschedulable"]
        if not _selects(pod["spec"], node["metadata"].get("labels") or {}):
            return ["node(s) didn't match Pod's node affinity/selector"]
        pods, name = self._operations.list(PODS), node["metadata"]["name"]
        others = [pod for pod in pods if pod["spec"].get("nodeName") == name and not is_finished(pod)]
        allocatable = node["status"]["allocatable"]
        if len(others) >= int(allocatable["pods"]):
            return ["Too many pods"]
        free = {resource: parse_quantity(quantity) for resource, quantity in allocatable.items()}
        for other in others:
            for resource, amount in requests(other).items():
                free[resource] = free.get(resource, Decimal(0)) - amount
        return [f"Insufficient {each}" for each, amount in sorted(requests(pod).items()) if amount > free.get(each, 0)]

    def _bind(self, pod: Json, node: str) -> None:
        metadata = pod["metadata"]
        bound = {**pod, "spec": {**pod["spec"], "nodeName": node}}
        scheduled = with_condition(conditions_of(pod), condition("PodScheduled", "True"))
        # The condition comes first: from the node's name on, the kubelet writes the rest of the status.
        self._operations.set_status(PODS, pod, {**(pod.get("status") or {}), "conditions": scheduled}, _OPTIONS)
        text = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {node}"
        self._recorder.normal(pod, "Scheduled", text)
        del bound["metadata"]
        self._operations.edit(PODS, *key_of(pod), lambda live: {**live, **bound}, _OPTIONS)

    def _refuse(self, pod: Json, message: str) -> None:
        status = pod.get("status") or {}
        new = condition("PodScheduled", "False", "Unschedulable", message)
        old = find_condition(status, "PodScheduled")
        if old and old.get("message") == message:
            return
        conditions = with_condition(conditions_of(pod), new)
        self._operations.set_status(PODS, pod, {**status, "phase": "Pending", "conditions": conditions}, _OPTIONS)
        self._recorder.warning(pod, "FailedScheduling", message)


def requests(pod: Json) -> dict[str, Decimal]:
    """Requested resources of the containers that run as long as the pod."""
    total: dict[str, Decimal] = {}
    for container in lasting_containers(pod["spec"]):
        for name, quantity in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = total.get(name, Decimal(0)) + parse_quantity(quantity)
    return total


def _selects(spec: Json, labels: dict[str, str]) -> bool:
    """Whether the pod accepts a node with these labels: nodeSelector and required node affinity."""
    if not (spec.get("nodeSelector") or {}).items() <= labels.items():
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any(selectors.from_object(term).matches(labels) for term in required.get("nodeSelectorTerms") or ())


STORAGE_CLASS = "local-folder"


class ClaimController(Controller):
    """Binds claims to `folder/NAMESPACE/CLAIM`. Claims of foreign storage classes stay pending."""

    manager = "persistentvolume-controller"

    def __init__(self, operations: Operations, folder: Path) -> None:
        super().__init__(operations)
        self._folder = folder

    def keys(self, change: Change) -> Iterable[Key]:
        if change.resource == CLAIMS.qualified and change.type is not ChangeType.DELETED:
            yield key_of(change.object)

    def reconcile(self, key: Key) -> float | None:
        namespace, name = key
        claim = self._operations.find(CLAIMS, namespace, name)
        if claim is None or "deletionTimestamp" in claim["metadata"]:
            return None
        if (claim.get("status") or {}).get("phase") == "Bound":
            return None
        storage_class = claim["spec"].get("storageClassName") or STORAGE_CLASS
        if storage_class != STORAGE_CLASS:
            text = f'storageclass.storage.k8s.io "{storage_class}" not found: local mode has "{STORAGE_CLASS}" only'
            self._recorder.warning(claim, "ProvisioningFailed", text)
            self._operations.set_status(CLAIMS, claim, {"phase": "Pending"}, self._options)
            return None
        (self._folder / namespace / name).mkdir(parents=True, exist_ok=True)
        spec = {**claim["spec"], "volumeName": f"pvc-{claim['metadata']['uid']}", "storageClassName": storage_class}
        claim = self._operations.update(CLAIMS, namespace, name, {**claim, "spec": spec}, self._options).object
        requests = (spec.get("resources") or {}).get("requests") or {}
        status = {"phase": "Bound", "accessModes": spec.get("accessModes") or [], "capacity": requests}
        self._operations.set_status(CLAIMS, claim, status, self._options)
        return None
