"""Parts of every controller: keys of objects, the loop over keys, and recorded events.

Changes name keys; the loop takes one key at a time until nothing is left to do. Controllers are level-triggered:
`reconcile` gets a key and no change. `reconcile` is synchronous, in the process of the API: reads are never stale.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import ClassVar

from fairlead_local.apiserver.metadata import random_suffix
from fairlead_local.apiserver.operations import Operations, WriteOptions
from fairlead_local.apiserver.resources import EVENTS
from fairlead_local.apiserver.status import Json, StatusError
from fairlead_local.apiserver.store import Change, ChangeType, Store, key_of
from fairlead_local.apiserver.times import seconds_since, timestamp

log = logging.getLogger(__name__)

Key = tuple[str, ...]
"""Names an object to a controller, mostly by namespace and name."""

_FIRST_RETRY_SECONDS = 0.05
_LONGEST_RETRY_SECONDS = 10.0
EVENT_SECONDS = 3_600.0
"""Life of an event after the last occurrence."""

_REMEMBERED = 4_096
"""Events that a recorder knows by name; a forgotten event is recorded anew."""


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
        key = (subject["metadata"]["uid"], kind, reason, message)
        with suppress(StatusError):  # the namespace is being deleted
            if same := self._operations.find(EVENTS, namespace, self._names.get(key, "")):
                counted = {**same, "count": same.get("count", 1) + 1, "lastTimestamp": timestamp()}
                self._operations.update(EVENTS, namespace, same["metadata"]["name"], counted, self._options)
            else:
                event = self._event(subject, kind, reason, message)
                if len(self._names) >= _REMEMBERED:
                    self._names.clear()
                self._names[key] = event["metadata"]["name"]
                self._operations.create(EVENTS, namespace, event, self._options)

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


class Controller:
    """One control loop over one API; `manager` names it in managedFields and events."""

    manager: ClassVar[str]

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._options = WriteOptions(manager=self.manager)
        self._recorder = ObjectEvents(operations, self.manager)

    def keys(self, change: Change) -> Iterable[Key]:
        """Keys to look at again after this change."""
        raise NotImplementedError

    def reconcile(self, key: Key) -> float | None:
        """Brings the state nearer to the specification. Returns seconds until the next look; None = a change."""
        raise NotImplementedError


class ControlLoop:
    """Runs one controller over one store."""

    def __init__(self, store: Store, controller: Controller) -> None:
        self._store = store
        self._controller = controller
        self._queue: dict[Key, None] = {}
        self._retries: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Looks at all objects, then at changes; ends when cancelled."""
        unsubscribe = self._store.subscribe(self._follow)
        try:
            for resource in self._store.resources():
                for obj in self._store.list(resource):
                    version = int(obj["metadata"]["resourceVersion"])
                    self._follow(Change(ChangeType.ADDED, resource, obj, None, version))
            while True:
                await self._woken.wait()
                if self._queue:
                    self._work(next(iter(self._queue)))
                else:
                    self._woken.clear()
                await asyncio.sleep(0)  # a busy controller must not starve the API
        finally:
            unsubscribe()
            for timer in self._timers.values():
                timer.cancel()

    def _follow(self, change: Change) -> None:
        for key in self._controller.keys(change):
            self._enqueue(key)

    def _enqueue(self, key: Key) -> None:
        self._queue[key] = None
        self._woken.set()

    def _work(self, key: Key) -> None:
        del self._queue[key]
        if timer := self._timers.pop(key, None):
            timer.cancel()
        again = self._attempt(key)
        if again is not None:
            self._timers[key] = asyncio.get_running_loop().call_later(again, self._enqueue, key)

    def _attempt(self, key: Key) -> float | None:
        try:
            again = self._controller.reconcile(key)
        except StatusError as error:
            retry = self._retries[key] = self._retries.get(key, 0) + 1
            log.debug("%s %s: %s", type(self._controller).__name__, key, error)
            return min(_FIRST_RETRY_SECONDS * 2.0**retry, _LONGEST_RETRY_SECONDS)
        except Exception:
            # One strange object must not end the control of all objects.
            log.exception("%s failed at %s", type(self._controller).__name__, key)
            return _LONGEST_RETRY_SECONDS
        self._retries.pop(key, None)
        return again


class EventExpiry(Controller):
    """Deletes events an hour after the last occurrence."""

    manager = "event-expiry"

    def keys(self, change: Change) -> Iterable[Key]:
        if change.resource == EVENTS.qualified and change.type is not ChangeType.DELETED:
            yield key_of(change.object)

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
