"""Files that go with their process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from fairlead_common.memory_files import memory_file

HOLDS = """
import sys, time
from fairlead_common.memory_files import memory_file
with memory_file(b"secret", "certificates") as path:
    print(path, flush=True)
    time.sleep(60)
"""


def test_it_can_be_read_by_its_path_any_number_of_times() -> None:
    with memory_file(b"one\ntwo", "certificates") as path:
        assert [Path(path).read_bytes() for _ in range(2)] == [b"one\ntwo"] * 2
        assert Path(path).stat().st_mode & 0o077 == 0
    assert not Path(path).exists()


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", HOLDS]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline().strip()
        process.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []
