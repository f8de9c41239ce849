"""Replies in the wanted shape: objects, lists, watch lines, Tables with the columns of `kubectl get`, errors."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from aiohttp import web

from fairlead.api.conditions import find_condition
from fairlead.api.pod_spec import lasting_containers, lasting_statuses, sidecars
from fairlead_local.apiserver.requests import ReplyShape
from fairlead_local.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS, NAME, Column, ResourceType
from fairlead_local.apiserver.status import Json
from fairlead_local.apiserver.times import age

AGE = Column("Age", lambda obj: age(obj["metadata"].get("creationTimestamp")))


def _field(*path: str, absent: Any = "<none>") -> Any:
    def cell(obj: Json) -> Any:
        value: Any = obj
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return absent if value in (None, "") else value

    return cell


def _pod_ready(pod: Json) -> str:
    return f"{sum(bool(s.get('ready')) for s in lasting_statuses(pod))}/{len(lasting_containers(pod['spec']))}"


def pod_reason(pod: Json) -> str:
    """The state of a pod in one word: a waiting or termination reason, else the phase."""
    status = pod.get("status", {})
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    reason: str = status.get("reason") or status.get("phase") or "Unknown"
    if initializing := _initializing(pod):
        return initializing
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        waiting, terminated = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            return str(waiting["reason"])
        if terminated:
            return str(terminated.get("reason") or f"ExitCode:{terminated['exitCode']}")
    return reason


def _initializing(pod: Json) -> str | None:
    """`Init:1/2`, or the problem of the present init container; None = all are done."""
    status, beside = pod.get("status") or {}, {each["name"] for each in sidecars(pod["spec"])}
    if (find_condition(status, "Initialized") or {}).get("status") == "True":
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
    ready = (find_condition(node.get("status") or {}, "Ready") or {}).get("status", "Unknown")
    return {"True": "Ready", "False": "NotReady"}.get(ready, "Unknown")


def _ready_of_wanted(workload: Json) -> str:
    return f"{(workload.get('status') or {}).get('readyReplicas', 0)}/{workload['spec'].get('replicas', 0)}"


_BUILT_IN: dict[str, tuple[Column, ...]] = {
    "pods": (NAME, Column("Ready", _pod_ready), Column("Status", pod_reason), Column("Restarts", _pod_restarts), AGE),
    "deployments.apps": (
        NAME,
        Column("Ready", _ready_of_wanted),
        Column("Up-to-date", _field("status", "updatedReplicas", absent=0), "integer"),
        Column("Available", _field("status", "availableReplicas", absent=0), "integer"),
        AGE,
    ),
    "replicasets.apps": (
        NAME,
        Column("Desired", _field("spec", "replicas", absent=0), "integer"),
        Column("Current", _field("status", "replicas", absent=0), "integer"),
        Column("Ready", _field("status", "readyReplicas", absent=0), "integer"),
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
    "configmaps": (NAME, Column("Data", lambda obj: len(obj.get("data") or {}), "integer"), AGE),
    "secrets": (
        NAME,
        Column("Type", _field("type")),
        Column("Data", lambda obj: len(obj.get("data") or {}), "integer"),
        AGE,
    ),
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
    CUSTOM_RESOURCE_DEFINITIONS.qualified: (NAME, Column("Created At", _field("metadata", "creationTimestamp"))),
}


def reply(body: Json, status: int = 200, warnings: Sequence[str] = ()) -> web.Response:
    """JSON, with one `Warning` header per sentence (kubectl prints them)."""
    response = web.Response(body=json.dumps(body), status=status, content_type="application/json")
    for warning in warnings:
        quoted = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{quoted}"')
    return response


def one(resource: ResourceType, obj: Json, shape: ReplyShape, include: str) -> Json:
    """An object in the shape wanted; a `Status` (of a deletion) stays one."""
    if shape is ReplyShape.OBJECT or obj.get("kind") == "Status":
        return obj
    if shape is ReplyShape.PARTIAL:
        return _partial(obj)
    return _table(resource, [obj], {"resourceVersion": obj["metadata"].get("resourceVersion", "")}, include)


def many(resource: ResourceType, objects: Sequence[Json], metadata: Json, shape: ReplyShape, include: str) -> Json:
    """A list in the shape wanted. Items of built-in kinds leave out apiVersion and kind, as a real server's do."""
    if shape is ReplyShape.TABLE:
        return _table(resource, objects, metadata, include)
    if shape is ReplyShape.PARTIAL:
        items = [_partial(obj) for obj in objects]
        kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
    else:
        hidden = () if resource.custom else ("apiVersion", "kind")
        items = [{field: value for field, value in obj.items() if field not in hidden} for obj in objects]
        kind, version = resource.list_name, resource.api_version
    return {"kind": kind, "apiVersion": version, "metadata": metadata, "items": items}


def watch_line(resource: ResourceType, kind: str, obj: Json, shape: ReplyShape, include: str, first: bool) -> bytes:
    """One line of a watch; only the `first` Table of a stream carries column definitions."""
    if shape is ReplyShape.TABLE and kind != "ERROR":
        rows = [] if kind == "BOOKMARK" else [obj]
        metadata = {"resourceVersion": obj["metadata"]["resourceVersion"]}
        obj = _table(resource, rows, metadata, include, headers=first)
    elif shape is ReplyShape.PARTIAL and kind != "ERROR":
        obj = _partial(obj)
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def _table(resource: ResourceType, objects: Iterable[Json], metadata: Json, include: str, headers: bool = True) -> Json:
    """A Table. `include`: content of a row beside the cells: `Metadata`, `Object` or `None`."""
    columns = resource.columns or _BUILT_IN.get(resource.qualified) or (NAME, AGE)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [_definition(column) for column in columns] if headers else None,
        "rows": [_row(columns, obj, include) for obj in objects],
    }


def _partial(obj: Json) -> Json:
    """The object's metadata alone, as a PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _definition(column: Column) -> Json:
    is_date = column.type == "date"
    return {
        "name": column.name,
        "type": "string" if is_date else column.type,
        "format": "name" if column.name == "Name" else "date" if is_date else "",
        "description": column.description or f"{column.name} of the object.",
        "priority": column.priority,
    }


def _row(columns: tuple[Column, ...], obj: Json, include: str) -> Json:
    row: Json = {"cells": [column.cell(obj) for column in columns]}
    if include == "Object":
        row["object"] = obj
    elif include != "None":
        row["object"] = _partial(obj)
    return row
