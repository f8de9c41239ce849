"""Objects in memory and on disk: one resourceVersion counter, recent changes for watches to replay, and a journal.

The verbs call the store, which knows keys and versions alone: meaning, permission and validity of objects are decided
above. Everything runs on one event loop: each call is atomic.

The journal holds one JSON line per change, folded into a snapshot now and then. The operating system has a line before
the change is made: a killed process loses nothing, and a line refused by a full disk leaves no change; power loss may
lose the last lines. resourceVersions are reserved in blocks: volatile kinds (pods, events, leases) spend versions too,
and no version may be handed out twice.
"""

import json
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from fairlead_local.apiserver.status import Json, expired, internal_error

RESERVED = 10_000
"""resourceVersions reserved at a time: the most that a restart skips."""
FOLD_AFTER = 5_000
"""Lines after which the journal is folded into a snapshot."""

Key = tuple[str, str, str]
"""(`plural.group`, namespace or "", name)."""


class Journal:
    """Appends changes to `folder/objects.jsonl`; `load` folds them.

    Raises OSError when the folder cannot be written; incomplete lines leave no trace.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "objects.jsonl"
        self._file: BinaryIO | None = None
        self._size = 0
        """Bytes of whole lines in the file."""
        self._lines = 0
        self._reserved = 0

    def load(self) -> tuple[int, dict[Key, Json]]:
        """The highest resourceVersion that may have been used, and the last written state of objects."""
        objects: dict[Key, Json | None] = {}
        version = 0
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        for line in text.splitlines(keepends=True):
            if not line.endswith("\n"):  # the process died in the middle of this line
                break
            entry = json.loads(line)
            version = max(version, int(entry.get("reserved", 0)))
            if "key" in entry:
                resource, namespace, name = entry["key"]
                objects[resource, namespace, name] = entry["object"]
        return version, {key: obj for key, obj in objects.items() if obj is not None}

    def open(self, version: int, objects: Iterable[tuple[Key, Json]]) -> None:
        """Writes a fresh snapshot and appends to it from now on. A failure leaves the journal unchanged."""
        self._lines = 0
        fresh = self._path.with_suffix(".new")
        try:
            with fresh.open("w", encoding="utf-8") as file:
                file.write(_line({"reserved": version + RESERVED}))
                file.writelines(_line({"key": key, "object": obj}) for key, obj in objects)
            # Without a buffer, which would keep a failed line and write it before the next line.
            appending = fresh.open("ab", buffering=0)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        self.close()
        fresh.replace(self._path)
        self._file, self._size = appending, self._path.stat().st_size
        self._reserved = version + RESERVED

    def write(self, key: Key, obj: Json | None) -> None:
        """Appends one object (None: deleted)."""
        self._append({"key": key, "object": obj})

    @property
    def is_long(self) -> bool:
        """Whether a fresh snapshot (`open`) is due."""
        return self._lines > FOLD_AFTER

    def reserve(self, version: int) -> None:
        """Called before `version` is handed out."""
        if version > self._reserved:
            self._append({"reserved": version + RESERVED})
            self._reserved = version + RESERVED

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None

    def _append(self, entry: dict[str, Any]) -> None:
        if self._file is None:
            raise ValueError("the journal is closed")
        line, written = _line(entry).encode(), 0
        try:
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError:
            self._file.truncate(self._size)  # half a line would hide all later lines
            raise
        self._size += len(line)
        self._lines += 1


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(entry, separators=(",", ":")) + "\n"


log = logging.getLogger(__name__)

HISTORY = 4_096
"""Changes kept per resource; the answer to a watch of an older version is 410."""

VOLATILE = frozenset({"pods", "events", "nodes", "leases.coordination.k8s.io"})
"""Resources of the running machine, not kept on disk."""


class ChangeType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Change:
    """One write. `object` has the new resourceVersion, for a deletion too; `previous`: None = a creation."""

    type: ChangeType
    resource: str
    object: Json
    previous: Json | None
    version: int


Listener = Callable[[Change], None]


class Store:
    """Objects by (`plural.group`, namespace, name). Handed-out objects must not be mutated by callers.

    A write that fails on disk raises StatusError 500 and changes nothing.
    """

    def __init__(self, journal: Journal | None = None, *, history: int = HISTORY) -> None:
        self._journal = journal
        self._history_size = history
        self._objects: dict[str, dict[tuple[str, str], Json]] = defaultdict(dict)
        self._history: dict[str, deque[Change]] = defaultdict(deque)
        self._forgotten: dict[str, int] = {}
        self._listeners: list[Listener] = []
        self.version = 1
        if journal:
            reserved, objects = journal.load()
            for (resource, namespace, name), obj in objects.items():
                self._objects[resource][namespace, name] = obj
            self.version = max(self.version, reserved)
            journal.open(self.version, self._kept())
        self._first_version = self.version

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        return self._objects[resource].get((namespace, name))

    def list(self, resource: str, namespace: str = "") -> Sequence[Json]:
        """Sorted by namespace and name; all namespaces when `namespace` is empty."""
        items = sorted(self._objects[resource].items(), key=lambda item: item[0])
        return [obj for (where, _), obj in items if not namespace or where == namespace]

    def resources(self) -> Sequence[str]:
        """Every resource with objects."""
        return [resource for resource, objects in self._objects.items() if objects]

    def put(self, resource: str, obj: Json) -> Json:
        """Stores `obj` with a fresh resourceVersion in the metadata; returns the stored object."""
        key = key_of(obj)
        previous = self._objects[resource].get(key)
        obj = self._versioned(obj)
        self._keep(resource, key, obj)
        self._objects[resource][key] = obj
        self._record(
            Change(ChangeType.MODIFIED if previous else ChangeType.ADDED, resource, obj, previous, self.version)
        )
        return obj

    def remove(self, resource: str, last: Json) -> Json:
        """Removes the object. Returns `last`, the final state, with the resourceVersion of the deletion."""
        key, last = key_of(last), self._versioned(last)
        self._keep(resource, key, None)
        previous = self._objects[resource].pop(key)
        self._record(Change(ChangeType.DELETED, resource, last, previous, self.version))
        return last

    def changes_since(self, resource: str, version: int) -> Sequence[Change]:
        """Changes of one resource after `version`, oldest first; raises 410 when some were forgotten."""
        if version > self.version:
            raise expired(f"too new resource version: {version} ({self.version})")
        if version < self._forgotten.get(resource, self._first_version):
            oldest = self._forgotten.get(resource, self._first_version)
            raise expired(f"too old resource version: {version} ({oldest})")
        newer = takewhile(lambda change: change.version > version, reversed(self._history[resource]))
        return list(newer)[::-1]

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` with every change, within the write. Returns the end of the subscription, to call."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def close(self) -> None:
        if self._journal:
            self._journal.close()

    def _versioned(self, obj: Json) -> Json:
        """`obj` with the next resourceVersion."""
        if self._journal:
            with _storing():
                self._journal.reserve(self.version + 1)
        self.version += 1
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}

    def _keep(self, resource: str, key: tuple[str, str], obj: Json | None) -> None:
        """On disk before anywhere else."""
        if self._journal and resource not in VOLATILE:
            with _storing():
                self._journal.write((resource, *key), obj)

    def _record(self, change: Change) -> None:
        history = self._history[change.resource]
        history.append(change)
        if len(history) > self._history_size:
            self._forgotten[change.resource] = history.popleft().version
        if self._journal and self._journal.is_long:
            try:
                self._journal.open(self.version, self._kept())
            except OSError as error:
                log.warning("the journal of objects stays long: %s", error)
        for listener in tuple(self._listeners):
            listener(change)

    def _kept(self) -> Iterator[tuple[Key, dict[str, Any]]]:
        for resource, objects in self._objects.items():
            if resource not in VOLATILE:
                for (namespace, name), obj in objects.items():
                    yield (resource, namespace, name), obj


def key_of(obj: Json) -> tuple[str, str]:
    """Namespace, empty for an object without, and name."""
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


@contextmanager
def _storing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"nothing was changed, because the fleet's data folder cannot be written: {error.strerror}"
        raise internal_error(text) from error
