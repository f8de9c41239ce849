"""The workflow that makes a release: all that it runs is make's, and there."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
WORKFLOW = ROOT / ".github" / "workflows" / "release.yaml"
STEPS = [step for job in yaml.safe_load(WORKFLOW.read_text())["jobs"].values() for step in job["steps"]]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("command", [step["run"] for step in STEPS if "run" in step])
def test_what_is_run_is_a_target_of_make(command: str) -> None:
    match = re.fullmatch(r"(?:sudo --preserve-env )?make ([a-z-]+)( [A-Z]+=\S.*)?", command)
    assert match is not None and match[1] in TARGETS


def test_what_is_used_is_only_what_sets_the_machine_up() -> None:
    used = {step["uses"].partition("@")[0] for step in STEPS if "uses" in step}
    assert used == {"actions/checkout", "actions/setup-python"}


@pytest.mark.parametrize(
    ("target", "told"),
    [("images-push", "REGISTRY=registry.example.com/team"), ("chart-push", "REGISTRY="), ("release-check", "TAG=v")],
)
def test_a_target_that_lacks_a_word_says_which(target: str, told: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", target, "REGISTRY=", "TAG="], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and f"make {target} {told}" in done.stderr
