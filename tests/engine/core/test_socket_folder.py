"""Folders for sockets: what a killed process has left, the next one removes, and nothing else."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fairlead_engine.core.process_client import SocketFolder, sweep

HOLDS = """
import sys, time
from fairlead_engine.core.process_client import SocketFolder
print(SocketFolder().path, flush=True)
time.sleep(60)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_what_a_killed_process_has_left_is_removed_by_the_next(place: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        sweep(place, young_seconds=-1.0)
        assert left.exists(), "its process is there"
        process.send_signal(signal.SIGKILL)
    assert left.exists()
    others = place / "fairlead-core-file", place / "other"
    others[0].write_text("no folder")
    others[1].mkdir()
    sweep(place)
    assert left.exists(), "one that is young may not be locked yet"
    os.utime(left, (0, 0))
    folder = SocketFolder()
    assert not left.exists()
    assert folder.path.exists() and all(each.exists() for each in others)
    assert folder.path.stat().st_mode & 0o077 == 0
    folder.remove()
    assert sorted(place.iterdir()) == sorted(others)
