"""What a shell meets: completion, and readers who have read enough."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.testing.fake_engine import FakeEngine

COMPLETE = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_fairlead
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script of each shell."""
    folder = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        command = [sys.executable, "-m", "fairlead", "completion", shell]
        made = subprocess.run(command, capture_output=True, text=True, check=True)
        assert made.stderr == ""
        (folder / shell).write_text(made.stdout)
    return folder


@pytest.mark.parametrize(
    ("typed", "among", "not_among"),
    [
        ("fairlead ''", {"local", "bench", "completion"}, {"up", "--model"}),
        ("fairlead local ''", {"up", "down", "status", "logs"}, {"bench"}),
        ("fairlead local up --g", {"--gateways", "--gateway-port"}, {"--file", "--detached"}),
        ("fairlead bench --workload ''", {"shared-prefix", "fixed"}, {"--rate"}),
        ("fairlead bench --rate 4 --workload fixed --s", {"--seed", "--slo-ttft"}, {"fixed"}),
        ("fairlead top -o ''", {"json"}, {"--once"}),
    ],
)
async def test_bash_completes(scripts: Path, typed: str, among: set[str], not_among: set[str]) -> None:
    text = COMPLETE.format(script=scripts / "bash", words=typed)
    found = await asyncio.to_thread(subprocess.run, ["bash", "-c", text], capture_output=True, text=True, check=True)
    assert found.stderr == ""
    words = set(found.stdout.split())
    assert among <= words and not not_among & words


@pytest.mark.parametrize("shell", ["zsh", "fish"])
async def test_other_shells_read_theirs(scripts: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    process = await asyncio.create_subprocess_exec(
        shell, "-c", f"source {scripts / shell}", stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")


async def test_fish_has_verbs_flags_and_choices(scripts: Path) -> None:
    lines = (scripts / "fish").read_text().splitlines()
    assert any("-a 'up down status logs'" in line and "from local" in line for line in lines)
    assert any("-l workload" in line and "shared-prefix" in line for line in lines)


@pytest.mark.parametrize(
    "command", [("completion", "bash"), ("chat", "Hi"), ("bench", "--num-requests", "2"), ("--help",)]
)
async def test_a_reader_who_has_read_enough_is_no_error(command: tuple[str, ...]) -> None:
    """`| head` that is gone before the first word."""
    reading, writing = os.pipe()
    os.close(reading)
    async with FakeEngine() as engine:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fairlead", *command,
            stdin=asyncio.subprocess.DEVNULL, stdout=writing, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "FAIRLEAD_GATEWAY": engine.url},
        )  # fmt: skip
        os.close(writing)
        _, err = await process.communicate()
    assert "Traceback" not in err.decode() and "BrokenPipe" not in err.decode()
    assert process.returncode in (0, 1)
