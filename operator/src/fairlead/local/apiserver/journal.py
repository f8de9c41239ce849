"""The store on disk: one JSON line per change, folded into a snapshot now and then.

Called by the store only. A line is flushed to the operating system before the change is answered, so a killed process
loses nothing; power loss may lose the last lines. resourceVersions are reserved in blocks, because kinds that are not
kept (pods, events, leases) spend them too and a version must never be handed out twice.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from fairlead.local.apiserver.status import Json

RESERVED = 10_000
"""resourceVersions reserved at a time; a restart skips at most this many."""
FOLD_AFTER = 5_000
"""Lines after which the journal is folded into a snapshot."""

Key = tuple[str, str, str]
"""(`plural.group`, namespace or "", name)."""


class Journal:
    """Appends changes to `folder/objects.jsonl`; `load` folds them. Raises OSError when the folder is not writable."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "objects.jsonl"
        self._file: TextIO | None = None
        self._lines = 0
        self._reserved = 0

    def load(self) -> tuple[int, dict[Key, Json]]:
        """The highest resourceVersion that may have been used, and the objects as they were last written."""
        objects: dict[Key, Json] = {}
        version = 0
        for entry in self._entries():
            version = max(version, int(entry.get("reserved", 0)))
            if "key" in entry:
                resource, namespace, name = entry["key"]
                key = (resource, namespace, name)
                if entry["object"] is None:
                    objects.pop(key, None)
                else:
                    objects[key] = entry["object"]
        return version, objects

    def open(self, version: int, objects: Iterable[tuple[Key, Json]]) -> None:
        """Writes a fresh snapshot and starts appending to it."""
        self.close()
        self._reserved = version + RESERVED
        fresh = self._path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            file.write(_line({"reserved": self._reserved}))
            file.writelines(_line({"key": key, "object": obj}) for key, obj in objects)
        fresh.replace(self._path)
        self._file = self._path.open("a", encoding="utf-8")
        self._lines = 0

    def write(self, key: Key, obj: Json | None) -> bool:
        """Appends one object (None: deleted); true when it is time to `open` again, with a fresh snapshot."""
        self._append({"key": key, "object": obj})
        return self._lines > FOLD_AFTER

    def reserve(self, version: int) -> None:
        """Called before `version` is handed out."""
        if version > self._reserved:
            self._reserved = version + RESERVED
            self._append({"reserved": self._reserved})

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None

    def _append(self, entry: dict[str, Any]) -> None:
        if self._file is None:
            raise ValueError("the journal is closed")
        self._file.write(_line(entry))
        self._file.flush()
        self._lines += 1

    def _entries(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open(encoding="utf-8") as file:
            for line in file:
                if not line.endswith("\n"):  # the process died in the middle of this line
                    return
                yield json.loads(line)


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(entry, separators=(",", ":")) + "\n"
