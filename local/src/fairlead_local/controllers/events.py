"""Events: what controllers and the kubelet tell people. One object per subject, reason and message; kept an hour."""

from collections.abc import Iterable

from fairlead_local.apiserver.metadata import random_suffix
from fairlead_local.apiserver.operations import Operations, WriteOptions
from fairlead_local.apiserver.resources import EVENTS
from fairlead_local.apiserver.status import ApiError, Json
from fairlead_local.apiserver.store import Change, ChangeType
from fairlead_local.apiserver.times import seconds_since, timestamp
from fairlead_local.controllers.loop import Key

EVENT_SECONDS = 3_600.0
"""How long an event is kept after it was last seen."""

_REMEMBERED = 4_096
"""Events a recorder knows by name; one it has forgotten is recorded anew when it happens again."""


class ObjectEvents:
    """Records events of one `component`. A repeated event is counted, not repeated."""

    def __init__(self, operations: Operations, component: str, host: str = "") -> None:
        self._operations = operations
        self._component = component
        self._host = host
        self._options = WriteOptions(manager=component)
        self._names: dict[tuple[str, ...], str] = {}

    def normal(self, subject: Json, reason: str, message: str) -> None:
        self._record(subject, "Normal", reason, message)

    def warning(self, subject: Json, reason: str, message: str) -> None:
        self._record(subject, "Warning", reason, message)

    def _record(self, subject: Json, kind: str, reason: str, message: str) -> None:
        namespace = subject["metadata"].get("namespace", "default")
        try:
            key = (subject["metadata"]["uid"], kind, reason, message)
            same = self._operations.find(EVENTS, namespace, self._names.get(key, ""))
            if same:
                counted = {**same, "count": same.get("count", 1) + 1, "lastTimestamp": timestamp()}
                self._operations.update(EVENTS, namespace, same["metadata"]["name"], counted, self._options)
            else:
                event = self._event(subject, kind, reason, message)
                if len(self._names) >= _REMEMBERED:
                    self._names.clear()
                self._names[key] = event["metadata"]["name"]
                self._operations.create(EVENTS, namespace, event, self._options)
        except ApiError:
            pass  # the namespace is being deleted: there is nobody left to tell

    def _event(self, subject: Json, kind: str, reason: str, message: str) -> Json:
        metadata, now = subject["metadata"], timestamp()
        reference = {"apiVersion": subject["apiVersion"], "kind": subject["kind"]}
        fields = ("name", "namespace", "uid", "resourceVersion")
        return {
            "metadata": {"name": f"{metadata['name']}.{random_suffix(16)}"},
            "involvedObject": reference | {field: metadata[field] for field in fields if field in metadata},
            "type": kind,
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": self._component} | ({"host": self._host} if self._host else {}),
            "reportingComponent": self._component,
            "reportingInstance": self._host,
        }


class EventExpiry:
    """Deletes events that were last seen an hour ago."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def keys(self, change: Change) -> Iterable[Key]:
        if change.resource == EVENTS.qualified and change.type is not ChangeType.DELETED:
            yield change.object["metadata"]["namespace"], change.object["metadata"]["name"]

    def reconcile(self, key: Key) -> float | None:
        event = self._operations.find(EVENTS, *key)
        if event is None:
            return None
        seen = event.get("lastTimestamp") or event["metadata"]["creationTimestamp"]
        remaining = EVENT_SECONDS - seconds_since(seen)
        if remaining <= 0:
            self._operations.store.remove(EVENTS.qualified, event)
            return None
        return remaining
