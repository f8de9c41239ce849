"""What a benchmark of engines has found so far: a file that is whole after every run, to be gone on with later."""

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

OURS = "fairlead"
"""How our own engine is called among the others."""
ROOT = Path(__file__).parents[2]
_MEASURED = ("engine/src", "engine/benchmarks", "common/src")
"""What decides about a run, beside the machine: runs of different sources are not one engine's."""


def sources() -> str:
    """A digest of all Python that a run of ours consists of."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(path for folder in _MEASURED for path in (ROOT / folder).rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


class Results:
    """A dictionary in a JSON file."""

    def __init__(self, path: Path, found: dict[str, Any]) -> None:
        self.path = path
        self.found = found

    @staticmethod
    def begin(path: Path, machine: dict[str, Any], *, resume: bool) -> "Results":
        """Those of the file, to be gone on with, or none yet. Ends the program where they are of something else."""
        own = {"machine": machine, "sources": sources()}
        if not resume:
            return Results(path, {**own, "minutes": 0.0, "rates": {}, "growth": {}, "profiles": {}, "tables": []})
        if not path.exists():
            sys.exit(f"there is nothing to resume: {path} does not exist")
        found = json.loads(path.read_text())
        if changed := [name for name, value in own.items() if found.get(name) != value]:
            sys.exit(f"{path} was measured with other {' and '.join(changed)}; begin anew without --resume")
        return Results(path, found)

    def rows(self, name: str, entry: dict[str, Any]) -> list[dict[str, Any]]:
        """Those of the table of that name, which begins as `entry` where there is none yet. Why an engine did not run
        is asked again."""
        known = [each for each in self.found["tables"] if each["name"] == name]
        if not known:
            self.found["tables"].append({"name": name, **entry})
            known = self.found["tables"][-1:]
        rows: list[dict[str, Any]] = known[0]["engines"]
        for row in rows:
            row.pop("reason", None)
        return rows

    def save(self) -> None:
        """Puts the file in place of the one before as a whole."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.found, indent=1))
        new.replace(self.path)


def kind(machine: dict[str, Any]) -> str:
    """The page's name: the machine's kind, without what differs between two of them."""
    by = str(machine.get("bfloat16 by") or "").partition(" ")[0]
    words = machine.get("gpu") or f"{machine['cpu']} {by}"
    return re.sub(r"[^a-z0-9]+", "-", f"{words} {machine['cores']} cores".lower()).strip("-")


def rows(entry: dict[str, Any]) -> Iterator[tuple[str, dict[str, float], list[dict[str, Any]], str]]:
    """Name, medians, runs and reason of each engine."""
    for row in entry["engines"]:
        runs = row["runs"]
        names = [key for key, value in runs[0].items() if isinstance(value, int | float)] if runs else []
        medians = {name: median(run[name] for run in runs) for name in names}
        yield row["engine"]["name"], medians, runs, row.get("reason", "")
