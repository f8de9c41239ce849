"""The benchmark of routers plays its loads, counts, and writes a page and a picture; here with our gateway alone."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "operator" / "benchmarks" / "routers.py"


@pytest.mark.slow
def test_loads_are_played_and_shown(tmp_path: Path) -> None:
    options = ("--routers", "Fairlead", "--loads", "2", "--runs", "1", "--seconds", "3", "--docs", str(tmp_path))
    done = subprocess.run([sys.executable, PROGRAM, *options], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "routers.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ") and "Fairlead" in line]
    assert [row[0] for row in rows] == ["3 engines, 12 shared prefixes", "3 engines, talks of 4 turns"]
    for _, _, median, p90, cached, failed, cpu in rows:
        assert 0 < int(median) <= int(p90)
        assert 0 < float(cached.rstrip("%")) < 100
        assert failed == "0"
        assert float(cpu) > 0
    picture = (tmp_path / "routers.svg").read_text()
    assert all(row[0] in picture for row in rows)


def test_wrong_usage_is_told() -> None:
    command = [sys.executable, PROGRAM, "--routers", "haproxy"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "sglang-router" in done.stderr
