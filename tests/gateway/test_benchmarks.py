"""The benchmarks of the gateway play their loads, count, and write pages; here without other routers."""

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


@pytest.mark.slow
def test_a_load_is_played_with_and_without_a_batch(tmp_path: Path) -> None:
    options = ("--loads", "1", "--pairs", "2", "--seconds", "4", "--output", str(tmp_path / "batches.md"))
    program = PROGRAM.with_name("batches.py")
    done = subprocess.run([sys.executable, program, *options], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "batches.md").read_text().splitlines()
    alone, beside = ([each.strip() for each in line.split("|")[2:-1]] for line in lines if "short lines" in line)
    assert (alone[0], alone[3], beside[0]) == ("none", "1.00", "beside one")
    for _, median, p90, _, failed, _ in (alone, beside):
        assert 0 < int(median) <= int(p90) and failed == "0"
    assert float(alone[-1]) == 0 < float(beside[-1])
    found, low, high = (float(each) for each in beside[3].rstrip(")").replace("(", "… ").split("… "))
    assert 0 < low <= found <= high


@pytest.mark.slow
def test_an_open_page_costs_what_its_two_answers_cost() -> None:
    command = [sys.executable, PROGRAM.with_name("pages.py"), "--models", "2", "--polls", "3", "--idle", "0.1"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout.splitlines()
    looks, lines, models, history, page = (float(line.split(": ")[1].split()[0]) for line in told[2:])
    assert looks < lines < page, "with no page open there is next to nothing"
    assert page == pytest.approx(models / 20 + history / 50, abs=0.02)


def test_wrong_usage_is_told() -> None:
    command = [sys.executable, PROGRAM, "--routers", "haproxy"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "sglang-router" in done.stderr
