"""The table of verified versions that a run writes."""

from dataclasses import replace
from datetime import date

import pytest
from homes.verified import BEGIN, END, HEAD, Verified, with_row

RUN = Verified("1.37.2", "containerd 2.2.9", "4.3.1", "all", passed=171, skipped=3, on=date(2030, 1, 2))
EMPTY = f"# Kubernetes\n\n{BEGIN}\n{END}\n\nMore.\n"


def test_rows_stand_newest_first_and_a_later_run_replaces_the_row_of_its_minor_version() -> None:
    text = EMPTY
    for version in ("1.9.1", "1.37.2", "1.36.3", "1.37.4"):
        text = with_row(text, replace(RUN, kubernetes=version))
    rows = [line for line in text.splitlines() if line.startswith("| 1.")]
    assert [row.split()[1] for row in rows] == ["1.37.4", "1.36.3", "1.9.1"]
    assert rows[0] == "| 1.37.4 | all | 171 passed, 3 skipped | containerd 2.2.9, Helm 4.3.1 | 2030-01-02 |"
    assert text.startswith(f"# Kubernetes\n\n{BEGIN}\n{HEAD}") and text.endswith(f"{END}\n\nMore.\n")
    assert with_row(text, replace(RUN, kubernetes="1.37.4")) == text


def test_a_document_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="has no"):
        with_row("# Kubernetes\n", RUN)
