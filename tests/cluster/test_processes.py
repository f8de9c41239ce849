"""Processes and their record: nobody else's process is ever taken for one of the node's."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cluster import processes
from cluster.processes import ComponentFailed, Process, Record, Starter

SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")
DEAF = (
    sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)",
)  # fmt: skip


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(SLEEP)
    yield child
    child.kill()
    child.wait()


def known(pid: int) -> Process:
    process = Process.of(pid)
    assert process is not None
    return process


def test_a_process_is_known_by_its_number_and_start(sleeper: subprocess.Popen[bytes]) -> None:
    process = known(sleeper.pid)
    assert process.alive
    assert not replace(process, started=process.started - 1).alive


def test_a_stranger_with_the_same_number_gets_no_signal(sleeper: subprocess.Popen[bytes]) -> None:
    earlier = replace(known(sleeper.pid), started=1)
    processes.stop([earlier], patience_seconds=1)
    assert sleeper.poll() is None


def test_a_dead_process_that_nobody_has_collected_is_gone() -> None:
    child = subprocess.Popen(["true"])
    deadline = time.monotonic() + 30
    while Process.of(child.pid) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert Path(f"/proc/{child.pid}").exists()
    child.wait()


def test_stop_kills_what_does_not_listen() -> None:
    child = subprocess.Popen(DEAF, stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"deaf\n"
        process = known(child.pid)
        processes.stop([process], patience_seconds=0.2)
    assert not process.alive
    child.wait()


def test_a_record_is_read_as_it_was_written(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    file = tmp_path / "node.json"
    record = Record(file, mode="control-plane", build="k", mounted_netns_folder=True)
    record.processes["etcd"] = known(sleeper.pid)
    record.save()
    assert Record.read(file) == record
    assert record.living() == record.processes


def test_after_a_reboot_no_recorded_process_lives(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    record = Record(tmp_path / "node.json", boot="another", processes={"etcd": known(sleeper.pid)})
    assert record.living() == {}


def test_a_torn_record_still_says_that_there_was_a_node(tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    assert Record.read(file) is None
    file.write_text('{"mode": "no')
    torn = Record.read(file)
    assert torn is not None
    assert (torn.mode, torn.processes) == ("node", {})


def test_a_component_that_ends_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    record = Record(tmp_path / "node.json")
    starter = Starter(record, tmp_path, {"PATH": "/usr/bin:/bin"})
    starter.start("etcd", "sh", "-c", "echo the port is taken; exit 7")
    deadline = time.monotonic() + 30
    with pytest.raises(ComponentFailed, match=r"(?s)etcd ended with status 7.*the port is taken"):
        while time.monotonic() < deadline:
            starter.check()
            time.sleep(0.01)


def test_what_is_started_is_on_record_at_once(tmp_path: Path) -> None:
    starter = Starter(Record(tmp_path / "node.json"), tmp_path, {})
    starter.start("sleeper", *SLEEP)
    record = Record.read(tmp_path / "node.json")
    assert record is not None
    assert list(record.living()) == ["sleeper"]
    processes.stop(record.living().values())
    assert record.living() == {}
