"""`.ci/run` with a `make` that only tells what it was asked for: what runs, what is shown, and what ends it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parent.parent / ".ci" / "run"
MAKE = """#!/bin/sh
echo "words of $*"
[ "$*" != "$BROKEN" ] || exit 2
"""
NO_CLUSTER = "#!/bin/sh\nexit 4\n"


def run(folder: Path, broken: str) -> tuple[int, list[str]]:
    """The exit status and the lines of a run in which one target fails."""
    for path, text in (("bin/make", MAKE), (".venv/bin/python", NO_CLUSTER)):
        program = folder / path
        program.parent.mkdir(parents=True)
        program.write_text(text)
        program.chmod(0o755)
    (folder / ".ci").mkdir()
    shutil.copy(RUN, folder / ".ci" / "run")
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "BROKEN": broken}
    done = subprocess.run(
        ["bash", str(folder / ".ci" / "run")],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


def test_what_is_fetched_beside_lint_is_told_after_it_and_before_the_tests(tmp_path: Path) -> None:
    status, lines = run(tmp_path, broken="")
    assert status == 0
    targets = ("demo", "setup-dev", "lint", "setup-chart", "prometheus", "test-slow", "test")
    assert [line for line in lines if line.startswith("words")] == [f"words of {target}" for target in targets]


@pytest.mark.parametrize("broken", ["demo", "setup-dev", "lint", "setup-chart", "test-slow", "test"])
def test_a_step_that_fails_ends_the_run_and_its_words_are_shown(tmp_path: Path, broken: str) -> None:
    status, lines = run(tmp_path, broken)
    assert status == 2
    assert lines[-1] == f"words of {broken}"


def test_without_prometheus_the_run_goes_on_and_says_what_is_left_out(tmp_path: Path) -> None:
    status, lines = run(tmp_path, broken="prometheus")
    assert status == 0
    assert any("SKIPPED: the alerts' and dashboards' tests" in line for line in lines)
    assert "words of prometheus" in lines and "words of test" in lines
