"""Processes are found and ended by whoever holds their records, also when nobody recorded them."""

import os
import subprocess
import sys
from pathlib import Path

from fairlead_local.kubelet.process_table import ProcessId, ProcessRecords, identify, start_time, stop

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def start(records: ProcessRecords, script: list[str] = SLEEP) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, **records.marker}
    return subprocess.Popen(script, env=environment, start_new_session=True, stdout=subprocess.PIPE)


def test_what_is_recorded_is_stopped_and_forgotten(tmp_path: Path) -> None:
    records = ProcessRecords(tmp_path / "run")
    with start(records) as process:
        records.add(process.pid, "sleeper")
        assert [found.pid for found in records.running()] == [process.pid]
        assert ProcessRecords(tmp_path / "run").stop_all(5.0) == 1
        process.wait(5)
    assert records.running() == []
    assert list((tmp_path / "run").iterdir()) == []


def test_a_process_that_was_never_recorded_is_found_by_its_marker(tmp_path: Path) -> None:
    records, others = ProcessRecords(tmp_path / "run"), ProcessRecords(tmp_path / "other")
    with start(records) as process, start(others) as other:
        assert records.stop_all(5.0) == 1
        process.wait(5)
        assert other.poll() is None
        assert others.stop_all(5.0) == 1


def test_a_process_that_ignores_the_request_is_killed_with_its_group(tmp_path: Path) -> None:
    records = ProcessRecords(tmp_path / "run")
    script = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    with start(records, [sys.executable, "-c", script]) as process:
        records.add(process.pid, "stubborn")
        assert process.stdout is not None
        child = int(process.stdout.readline())
        records.stop_all(0.2)
        process.wait(5)
    assert start_time(child) is None


def test_another_process_with_the_same_number_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(SLEEP) as process:
        stop([ProcessId(process.pid, "long ago")], 0.5)
        assert process.poll() is None
        process.kill()


def test_a_process_that_has_ended_is_not_alive_before_anybody_waited_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "print('x', flush=True)"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read()
        own = identify(os.getpid())
        assert own is not None and own.alive
        while identify(process.pid):
            pass
        process.wait(5)


def test_a_record_written_halfway_is_ignored(tmp_path: Path) -> None:
    records = ProcessRecords(tmp_path)
    (tmp_path / "1.json").write_text('{"pid": 1, "sta')
    assert records.running() == []
    assert records.stop_all(0.1) == 0
