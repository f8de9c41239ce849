"""Tries what each family of models can do, and notes it in `docs/families_tried.json`, of which a page is made.

`make families` calls it and writes the page; `tests/engine/test_families.py` tries again and compares. What is tried is
`fairlead_engine_testing.family_trials`.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairlead_engine_testing.family_trials import COLUMNS, ROWS, Found, try_family

RECORD = Path(__file__).parent / "families_tried.json"
Record = Mapping[str, Mapping[str, Any]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Tries the families that are named, or all. Raises SystemExit for help and wrong usage, and AssertionError where
    one does something wrong, which is then nothing to note."""
    parser = argparse.ArgumentParser(description="Notes what families of models can do.", allow_abbrev=False)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"default: all of {', '.join(ROWS)}")
    names: list[str] = parser.parse_args(arguments).families
    if unknown := set(names) - set(ROWS):
        parser.error(f"there is no family {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    known: Record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    record = tried(names or ROWS, known, _try)
    RECORD.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def tried(names: Iterable[str], known: Record, try_one: Callable[[str, str], Found]) -> Record:
    """The record, by family: what is known of those that are not tried stays, what is no family goes."""
    new = {
        name: {
            "architecture": ROWS[name].architecture,
            **({"stands_for": ROWS[name].stands_for} if ROWS[name].stands_for else {}),
            "found": {column: try_one(name, column) for column in COLUMNS},
        }
        for name in names
    }
    return {name: new.get(name) or known[name] for name in ROWS if name in new or name in known}


def _try(name: str, column: str) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        return try_family(name, column, Path(folder))


if __name__ == "__main__":
    main()
