"""The table of verified versions in a document: one row for each minor version of Kubernetes, written by a run."""

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

BEGIN, END = "<!-- verified: begin -->", "<!-- verified: end -->"
HEAD = "| Kubernetes | scenarios | result | with | on |\n|---|---|---|---|---|\n"
_ROW = re.compile(r"^\| (?P<major>\d+)\.(?P<minor>\d+)\.")


@dataclass(frozen=True)
class Verified:
    """What one run has shown."""

    kubernetes: str
    """The API server's version, such as `1.37.2`."""
    runtime: str
    """The nodes' container runtime, such as `containerd 2.2.9`."""
    helm: str
    """The version of Helm that installed the chart."""
    scenarios: str
    """Which ones ran: `all` or `core`."""
    passed: int
    skipped: int
    on: date

    @property
    def row(self) -> str:
        result = f"{self.passed} passed, {self.skipped} skipped"
        tools = f"{self.runtime}, Helm {self.helm}"
        return f"| {self.kubernetes} | {self.scenarios} | {result} | {tools} | {self.on.isoformat()} |\n"


def with_row(text: str, verified: Verified) -> str:
    """The document with the run's row in the place of an older one of the same minor version, newest version first.

    Raises ValueError where the document has no place for the table.
    """
    before, begin, rest = text.partition(BEGIN)
    table, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the document has no {BEGIN} … {END}")
    rows = {_minor(line): line for line in table.splitlines(keepends=True) if _ROW.match(line)}
    rows[_minor(verified.row)] = verified.row
    body = "".join(rows[version] for version in sorted(rows, reverse=True))
    return f"{before}{BEGIN}\n{HEAD}{body}{END}{after}"


def record(file: Path, verified: Verified) -> None:
    """Writes the run's row into the document."""
    file.write_text(with_row(file.read_text(encoding="utf-8"), verified), encoding="utf-8")


def _minor(row: str) -> tuple[int, int]:
    found = _ROW.match(row)
    assert found is not None, row
    return int(found["major"]), int(found["minor"])
