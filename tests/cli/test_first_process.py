"""A container's first process hears of SIGTERM only if it asked for it: programs must, before they import the rest."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
PROGRAMS = {
    "fairlead": "import fairlead.cli.main as main",
    "fairlead-engine": "import fairlead_engine.__main__ as main",
}
SLOW_IMPORT = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name in {slow}:
            open({marker!r}, 'w').close()
            time.sleep(60)
sys.meta_path.insert(0, Slow())
{program}
sys.exit(main.main({arguments}))
"""


STARTING = """
import sys, time
open({marker!r}, 'w').close()
time.sleep(1)
{program}
sys.exit(main.main({arguments}))
"""


def can_unshare() -> bool:
    if shutil.which("unshare") is None or not hasattr(os, "geteuid"):
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("program", "arguments", "slow"),
    [
        ("fairlead", ["gateway", "--no-api-keys"], {"fairlead.gateway.gateway_command"}),
        ("fairlead", ["operator"], {"fairlead.controller.operator"}),
        ("fairlead-engine", ["serve", "--model", "demo://dinghy"], {"fairlead_engine.server.serve"}),
    ],
)
def test_sigterm_ends_a_first_process_that_is_still_importing(
    tmp_path: Path, program: str, arguments: list[str], slow: set[str]
) -> None:
    marker = tmp_path / "importing"
    source = SLOW_IMPORT.format(slow=slow, marker=str(marker), program=PROGRAMS[program], arguments=arguments)
    assert_ended_by_sigterm([sys.executable, "-c", source], marker)


@pytest.mark.parametrize(
    ("image", "program", "arguments"),
    [
        ("operator", "fairlead", ["gateway", "--no-api-keys"]),
        ("operator", "fairlead", ["operator"]),
        ("engine", "fairlead-engine", ["serve", "--model", "demo://dinghy"]),
    ],
)
def test_a_sigterm_that_comes_before_the_program_does_is_not_lost(
    tmp_path: Path, image: str, program: str, arguments: list[str]
) -> None:
    (entrypoint,) = re.findall(r"^ENTRYPOINT (.*)$", (ROOT / f"Dockerfile.{image}").read_text(), re.MULTILINE)
    *prefix, name = json.loads(entrypoint)
    assert name == program
    marker = tmp_path / "starting"
    source = STARTING.format(marker=str(marker), program=PROGRAMS[program], arguments=arguments)
    assert_ended_by_sigterm([*prefix, sys.executable, "-c", source], marker)


def assert_ended_by_sigterm(command: list[str], marker: Path) -> None:
    """The command, as the first process of its namespace, ends by a SIGTERM that comes once the marker is there."""
    if not can_unshare():
        pytest.skip("needs the right to make a PID namespace (unshare)")
    with subprocess.Popen([*UNSHARE, *command], stderr=subprocess.PIPE) as outside:
        try:
            deadline = time.monotonic() + 60
            while not marker.exists() and outside.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            (first,) = psutil.Process(outside.pid).children()
            first.send_signal(signal.SIGTERM)
            assert outside.wait(20) == 128 + signal.SIGTERM
        finally:
            outside.kill()
