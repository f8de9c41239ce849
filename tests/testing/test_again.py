"""`--again FILE` runs the tests that failed, whatever their names have, and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import os
import pytest

@pytest.mark.xdist_group("group")
@pytest.mark.parametrize("number", [1, 11])
def test_of_a_group(number): assert number == 11 or "WELL" in os.environ

@pytest.mark.parametrize("name", ["a b", "'$c", "@group", "ok"])
def test_of_none(name): assert name == "ok" or "WELL" in os.environ
"""
OTHER = "raise AssertionError('it is not even read')"


def test_what_failed_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text(MODULE)
    failed = tmp_path / "cache" / "v" / "cache" / "lastfailed"
    assert run(tmp_path, "-n2", "--dist=loadgroup", "test_module.py")[0] == pytest.ExitCode.TESTS_FAILED
    assert len(json.loads(failed.read_text())) == 4
    (tmp_path / "test_other.py").write_text(OTHER)
    status, said = run(tmp_path, "-n1", "--dist=loadgroup", "--again", str(failed), WELL="1")
    assert status == pytest.ExitCode.OK and "4 passed" in said, said
    assert json.loads(failed.read_text()) == {}
    assert run(tmp_path, "--again", str(failed))[0] == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_test_that_is_there_no_more_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text(MODULE)
    (tmp_path / "failed").write_text(json.dumps({"test_module.py::test_lost": True}))
    status, said = run(tmp_path, "--again", "failed")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "--again: of 1 tests 0 are there: test_module.py::test_lost" in said


def run(folder: Path, *options: str, **variables: str) -> tuple[int, str]:
    plugins = ["-p", "fairlead_testing.again", "-p", "xdist.plugin", "-o", "cache_dir=cache"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # which take longer to import than all else
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(folder), *plugins, *options],
        cwd=folder, env={**environment, **variables},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout
