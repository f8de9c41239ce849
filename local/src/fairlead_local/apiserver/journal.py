"""The store on disk: one JSON line per change, folded into a snapshot now and then.

Called by the store only. A line is with the operating system before the change is made, so a killed process loses
nothing, and what a full disk does not take never happened; power loss may lose the last lines. resourceVersions are
reserved in blocks, because kinds that are not kept (pods, events, leases) spend them too and a version must never be
handed out twice.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from fairlead_local.apiserver.status import Json

RESERVED = 10_000
"""resourceVersions reserved at a time; a restart skips at most this many."""
FOLD_AFTER = 5_000
"""Lines after which the journal is folded into a snapshot."""

Key = tuple[str, str, str]
"""(`plural.group`, namespace or "", name)."""


class Journal:
    """Appends changes to `folder/objects.jsonl`; `load` folds them.

    Raises OSError when the folder cannot be written; what was not written whole leaves no trace.
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
        """Writes a fresh snapshot and goes on after it. Where that fails, the journal stays as it was."""
        self._lines = 0
        fresh = self._path.with_suffix(".new")
        try:
            with fresh.open("w", encoding="utf-8") as file:
                file.write(_line({"reserved": version + RESERVED}))
                file.writelines(_line({"key": key, "object": obj}) for key, obj in objects)
            # Without a buffer, which would keep what failed and write it with the next line.
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
        """Whether it is time to `open` again, with a fresh snapshot."""
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
            self._file.truncate(self._size)  # half a line would hide all that come after it
            raise
        self._size += len(line)
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
