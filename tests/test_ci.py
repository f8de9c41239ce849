"""`.ci/run` with a `make` that only tells what it was asked for: what runs, what is shown, and what ends it."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest

RUN = Path(__file__).parent.parent / ".ci" / "run"
MAKE = """#!/bin/sh
case "$(chrt -p $$)" in *SCHED_IDLE*) echo "words of $*, idle" ;; *) echo "words of $*" ;; esac
cache=.pytest_cache/$1/v/cache
[ "$*" != "$BROKEN" ] || { mkdir -p $cache; printf "$FAILED" >$cache/lastfailed; exit 2; }
[ "$*" != "$BROKEN AGAIN=1" ] || exit $STATUS_ALONE
"""
PYTHON = """#!/bin/sh
shift # -m
[ "$*" != "cluster preflight" ] || exit $HOSTS
echo "words of $*, nice $(nice)"
[ "$*" != "$BROKEN" ] || exit 2
[ "$*" != "$ENDLESS" ] || exec sleep 3600
"""
NODE, CONTROL_PLANE, NOTHING = 0, 3, 4
"""What this machine can host, as `python -m cluster preflight` tells it."""


def run(
    folder: Path,
    broken: str = "",
    *,
    hosts: int = NOTHING,
    endless: str = "",
    late: int = 600,
    late_for_all: int = 600,
    failed: int = 0,
    status_alone: int = 0,
) -> tuple[int, list[str]]:
    """The exit status and the lines of a run in which one target, or one build, fails, or another never ends.

    `failed`: number of tests that fail of the target. `status_alone`: its exit status when these are tried alone.
    """
    for path, text in (("bin/make", MAKE), (".venv/bin/python", PYTHON)):
        program = folder / path
        program.parent.mkdir(parents=True)
        program.write_text(text)
        program.chmod(0o755)
    (folder / ".ci").mkdir()
    shutil.copy(RUN, folder / ".ci" / "run")
    told = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "BROKEN": broken, "HOSTS": str(hosts), "ENDLESS": endless,
            "LATE_SECONDS": str(late), "LATE_FOR_ALL_SECONDS": str(late_for_all), "STATUS_ALONE": str(status_alone),
            "FAILED": "".join(f'  "tests/test_{number}.py": true,\\n' for number in range(failed))}  # fmt: skip
    done = subprocess.run(
        ["bash", str(folder / ".ci" / "run")],
        env={**os.environ, **told}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


def words(lines: list[str]) -> list[str]:
    return [line.removeprefix("words of ") for line in lines if line.startswith("words of ")]


ON_OTHERS = ["e2e-kubernetes KUBERNETES=1.34 SCENARIOS=core"]
BEFORE = ["demo", "setup-dev", "setup-chart", "prometheus", "test-slow", "lint", "test"]


def test_lint_runs_beside_the_slow_tests_and_is_told_after_them(tmp_path: Path) -> None:
    status, lines = run(tmp_path)
    assert status == 0
    assert words(lines) == [*BEFORE, "test-compute", "e2e-local"]


@pytest.mark.parametrize("broken", ["demo", "setup-dev", "lint", "setup-chart", "test-slow", "test", "test-compute"])
def test_a_step_that_fails_ends_the_run_and_its_words_are_shown(tmp_path: Path, broken: str) -> None:
    status, lines = run(tmp_path, broken)
    assert status == 2
    assert lines[-1] == f"words of {broken}"


def test_without_prometheus_the_run_goes_on_and_says_what_is_left_out(tmp_path: Path) -> None:
    status, lines = run(tmp_path, "prometheus")
    assert status == 0
    assert any("SKIPPED: the alerts' and dashboards' tests" in line for line in lines)
    assert "words of prometheus" in lines and "words of test" in lines


@pytest.mark.parametrize(
    ("hosts", "built", "run_on_it"),
    [
        (NODE, ["cluster", "images"], ["e2e-kubernetes", *ON_OTHERS]),
        (CONTROL_PLANE, ["cluster"], ["e2e-control-plane", "e2e-local"]),
    ],
)
def test_what_the_scenarios_run_is_built_beside_the_tests_and_gives_way_to_them(
    tmp_path: Path, hosts: int, built: list[str], run_on_it: list[str]
) -> None:
    status, lines = run(tmp_path, hosts=hosts)
    assert status == 0
    assert words(lines) == [*BEFORE, *(f"{each} build, nice 19" for each in built), *run_on_it, "test-compute, idle"]


def test_a_build_that_fails_is_left_to_what_needs_it(tmp_path: Path) -> None:
    """Whose words and verdict count: what the network has failed once is not a change's fault."""
    status, lines = run(tmp_path, "images build", hosts=NODE)
    assert status == 0
    assert words(lines)[-5:-1] == ["cluster build, nice 19", "images build, nice 19", "e2e-kubernetes", *ON_OTHERS]
    assert "That failed, and is tried once more by what needs it." in lines


@pytest.mark.parametrize("broken", ["e2e-kubernetes", "e2e-kubernetes KUBERNETES=1.34 SCENARIOS=core"])
def test_a_scenario_that_fails_ends_the_run(tmp_path: Path, broken: str) -> None:
    status, lines = run(tmp_path, broken, hosts=NODE)
    assert status == 2
    assert lines[-1] == f"words of {broken}"


def test_a_slow_machine_leaves_the_oldest_version_out_and_says_so(tmp_path: Path) -> None:
    status, lines = run(tmp_path, hosts=NODE, late=-1)
    assert status == 0
    assert not {*words(lines)} & {*ON_OTHERS}
    assert any("SKIPPED: the central scenarios on Kubernetes 1.34" in line for line in lines)


def test_a_slower_machine_runs_the_central_scenarios_only_and_says_so(tmp_path: Path) -> None:
    status, lines = run(tmp_path, hosts=NODE, late=-1, late_for_all=-1)
    assert status == 0
    assert words(lines)[-2:] == ["e2e-kubernetes SCENARIOS=core", "test-compute, idle"]
    assert any("SKIPPED: all but the central scenarios" in line for line in lines)


@pytest.mark.parametrize(
    ("target", "failed", "alone", "verdict"),
    [
        ("test", 1, 0, 0), ("test-slow", 3, 0, 0), ("e2e-kubernetes", 1, 0, 0),
        ("test", 2, 2, 2), ("test", 4, 0, 2), ("test", 0, 0, 2),
    ],
)  # fmt: skip
def test_a_few_tests_that_fail_are_tried_once_more_alone_and_told(
    tmp_path: Path, target: str, failed: int, alone: int, verdict: int
) -> None:
    status, lines = run(tmp_path, target, hosts=NODE, failed=failed, status_alone=alone)
    assert status == verdict
    assert (f"{target} AGAIN=1" in words(lines)) == (1 <= failed <= 3)
    assert any("UNSTEADY" in line for line in lines) == (verdict == 0)
    if verdict == 0:
        assert lines[-failed:] == [f'  "tests/test_{number}.py": true,' for number in range(failed)]


def test_computation_that_fails_beside_the_scenarios_ends_the_run(tmp_path: Path) -> None:
    status, lines = run(tmp_path, "test-compute", hosts=NODE)
    assert status == 2
    assert lines[-1] == "words of test-compute, idle"


def test_nothing_outlives_a_run_that_ends_early(tmp_path: Path) -> None:
    status, _ = run(tmp_path, "test", hosts=NODE, endless="cluster build")
    assert status == 2
    deadline = time.monotonic() + 30
    while still := [each for each in psutil.process_iter() if works_in(each, tmp_path)]:
        assert time.monotonic() < deadline, still
        time.sleep(0.05)


def works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
