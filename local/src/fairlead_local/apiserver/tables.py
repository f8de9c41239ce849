"""The columns that `kubectl get` prints of the built-in kinds. Pure."""

from typing import Any

from fairlead.api.pod_spec import lasting_containers, lasting_statuses, sidecars
from fairlead_local.apiserver.resources import Column, ResourceType
from fairlead_local.apiserver.status import Json
from fairlead_local.apiserver.times import age


def columns_of(resource: ResourceType) -> tuple[Column, ...]:
    """The kind's own columns, else NAME and AGE."""
    return resource.columns or _BUILT_IN.get(resource.qualified) or (NAME, AGE)


NAME = Column("Name", lambda obj: obj["metadata"]["name"])
AGE = Column("Age", lambda obj: age(obj["metadata"].get("creationTimestamp")))


def _field(*path: str, absent: Any = "<none>") -> Any:
    def cell(obj: Json) -> Any:
        value: Any = obj
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return absent if value in (None, "") else value

    return cell


def _pod_statuses(pod: Json) -> list[Json]:
    found: list[Json] = pod.get("status", {}).get("containerStatuses") or []
    return found


def _pod_ready(pod: Json) -> str:
    return f"{sum(bool(s.get('ready')) for s in lasting_statuses(pod))}/{len(lasting_containers(pod['spec']))}"


def pod_reason(pod: Json) -> str:
    """The one word that says how a pod is: a waiting or termination reason before its phase."""
    status = pod.get("status", {})
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    reason: str = status.get("reason") or status.get("phase") or "Unknown"
    if initializing := _initializing(pod):
        return initializing
    for container in _pod_statuses(pod):
        state = container.get("state") or {}
        waiting, terminated = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            return str(waiting["reason"])
        if terminated:
            return str(terminated.get("reason") or f"ExitCode:{terminated['exitCode']}")
    return reason


def _initializing(pod: Json) -> str | None:
    """`Init:1/2`, or what keeps the init container from being done that is at work; None when all are."""
    status, beside = pod.get("status") or {}, {each["name"] for each in sidecars(pod["spec"])}
    conditions = status.get("conditions") or ()
    if any(each["type"] == "Initialized" and each["status"] == "True" for each in conditions):
        return None
    for number, container in enumerate(status.get("initContainerStatuses") or ()):
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated")
        if (ended and not ended["exitCode"]) or (container["name"] in beside and container.get("started")):
            continue
        if ended:
            return f"Init:{ended.get('reason') or 'ExitCode:' + str(ended['exitCode'])}"
        if waiting.get("reason", "PodInitializing") != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{number}/{len(pod['spec']['initContainers'])}"
    return None


def _pod_restarts(pod: Json) -> str:
    statuses = lasting_statuses(pod)
    total = sum(status.get("restartCount", 0) for status in statuses)
    ended = [((s.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for s in statuses]
    latest = max((moment for moment in ended if moment), default=None)
    return f"{total} ({age(latest)} ago)" if total and latest else str(total)


def _ports(service: Json) -> str:
    ports = service["spec"].get("ports") or ()
    return ",".join(f"{port['port']}/{port.get('protocol', 'TCP')}" for port in ports) or "<none>"


def _event_object(event: Json) -> str:
    involved = event.get("involvedObject") or {}
    return f"{involved.get('kind', '').lower()}/{involved.get('name', '')}"


def _event_seen(event: Json) -> str:
    series = (event.get("series") or {}).get("lastObservedTime")
    return age(series or event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp"))


def _node_status(node: Json) -> str:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((c["status"] for c in conditions if c["type"] == "Ready"), "Unknown")
    return {"True": "Ready", "False": "NotReady"}.get(ready, "Unknown")


def _size(field: str) -> Any:
    return lambda obj: len(obj.get(field) or {})


def _count(*path: str) -> Any:
    return _field(*path, absent=0)


_BUILT_IN: dict[str, tuple[Column, ...]] = {
    "pods": (
        NAME,
        Column("Ready", _pod_ready),
        Column("Status", pod_reason),
        Column("Restarts", _pod_restarts),
        AGE,
    ),
    "deployments.apps": (
        NAME,
        Column("Ready", lambda d: f"{_count('status', 'readyReplicas')(d)}/{_count('spec', 'replicas')(d)}"),
        Column("Up-to-date", _count("status", "updatedReplicas"), "integer"),
        Column("Available", _count("status", "availableReplicas"), "integer"),
        AGE,
    ),
    "replicasets.apps": (
        NAME,
        Column("Desired", _count("spec", "replicas"), "integer"),
        Column("Current", _count("status", "replicas"), "integer"),
        Column("Ready", _count("status", "readyReplicas"), "integer"),
        AGE,
    ),
    "services": (
        NAME,
        Column("Type", _field("spec", "type")),
        Column("Cluster-IP", _field("spec", "clusterIP")),
        Column("External-IP", _field("spec", "externalName")),
        Column("Port(s)", _ports),
        AGE,
    ),
    "configmaps": (NAME, Column("Data", _size("data"), "integer"), AGE),
    "secrets": (NAME, Column("Type", _field("type")), Column("Data", _size("data"), "integer"), AGE),
    "serviceaccounts": (NAME, Column("Secrets", lambda sa: len(sa.get("secrets") or ()), "integer"), AGE),
    "namespaces": (NAME, Column("Status", _field("status", "phase", absent="Active")), AGE),
    "nodes": (
        NAME,
        Column("Status", _node_status),
        Column("Roles", lambda node: "<none>"),
        AGE,
        Column("Version", _field("status", "nodeInfo", "kubeletVersion")),
    ),
    "persistentvolumeclaims": (
        NAME,
        Column("Status", _field("status", "phase")),
        Column("Volume", _field("spec", "volumeName", absent="")),
        Column("Capacity", _field("status", "capacity", "storage", absent="")),
        Column("Access Modes", lambda claim: ",".join((claim.get("status") or {}).get("accessModes") or ())),
        Column("StorageClass", _field("spec", "storageClassName", absent="")),
        AGE,
    ),
    "events": (
        Column("Last Seen", _event_seen),
        Column("Type", _field("type")),
        Column("Reason", _field("reason")),
        Column("Object", _event_object),
        Column("Message", lambda event: (event.get("message") or "").strip()),
    ),
    "leases.coordination.k8s.io": (NAME, Column("Holder", _field("spec", "holderIdentity", absent="")), AGE),
    "customresourcedefinitions.apiextensions.k8s.io": (
        NAME,
        Column("Created At", _field("metadata", "creationTimestamp")),
    ),
}
