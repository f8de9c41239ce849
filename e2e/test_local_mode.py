"""`fairlead local`: what `up` starts, `down` stops, also after a crash in the middle; what is in the way is named."""

import os
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from homes.local import free_port

pytestmark = pytest.mark.local_only(reason="it is about the command `fairlead local`")

Command = Callable[..., subprocess.CompletedProcess]


def mentioning(folder: Path) -> list[psutil.Process]:
    """Processes whose command line or environment names the fleet's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        theirs = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
        if theirs and any(str(folder) in word for word in words):
            found.append(process)
    return found


@pytest.fixture
def up(command: Command, tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess]]:
    folder = tmp_path / "fleet"

    def start(*more: str, ports: tuple[int, int] | None = None) -> subprocess.CompletedProcess:
        api, gateway = ports or (free_port(), free_port())
        return command(
            "local", "up", "--detach", "--data-dir", str(folder),
            "--api-port", str(api), "--gateway-port", str(gateway), *more,
        )  # fmt: skip

    yield start
    command("local", "down", "--data-dir", str(folder))


def test_down_stops_everything_that_up_started(up, command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    started = up("-f", "examples/01-dinghy.yaml")
    assert started.returncode == 0, started.stdout + started.stderr
    assert stat.S_IMODE((folder / "kubeconfig").stat().st_mode) == 0o600
    assert mentioning(folder)
    assert command("local", "status", "--data-dir", str(folder)).returncode == 0
    assert "operator" in command("local", "logs", "operator", "--data-dir", str(folder)).stdout.lower()
    stopped = command("local", "down", "--data-dir", str(folder))
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert mentioning(folder) == []
    assert command("local", "status", "--data-dir", str(folder)).returncode != 0


@pytest.mark.slow
def test_down_stops_everything_after_a_crash_in_the_middle(up, command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    started = up("-f", "examples/01-dinghy.yaml")
    assert started.returncode == 0, started.stdout + started.stderr
    everything = mentioning(folder)
    supervisor = [process for process in everything if "local" in process.cmdline()]
    assert supervisor
    for process in supervisor:
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs(supervisor, timeout=20)
    assert command("local", "down", "--data-dir", str(folder)).returncode == 0
    assert mentioning(folder) == []


@pytest.mark.slow
def test_a_port_in_use_is_named_with_the_flag_that_changes_it(up) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for ports, flag in (((port, free_port()), "--api-port"), ((free_port(), port), "--gateway-port")):
            refused = up(ports=ports)
            assert refused.returncode != 0
            assert str(port) in refused.stdout + refused.stderr
            assert flag in refused.stdout + refused.stderr


def test_a_data_folder_that_cannot_be_written_is_named(command: Command, tmp_path: Path) -> None:
    """A file where the folder should be refuses root as well, which ignores permissions."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    refused = command("local", "up", "--detach", "--data-dir", str(blocked / "fleet"))
    assert refused.returncode != 0
    assert str(blocked) in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_a_second_up_says_how_to_stop_the_first(up) -> None:
    assert up().returncode == 0
    again = up()
    assert again.returncode != 0 or "already" in again.stdout + again.stderr
