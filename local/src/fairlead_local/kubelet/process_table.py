"""Processes of this machine, told apart from later processes with the same number, and their certain end.

Every process of a fleet is recorded in a folder at the start and carries the name of the folder in the environment: all
processes can be found and ended, after a crash too. The keeper, a small process that outlives the supervisor, ends the
fleet of a killed supervisor: the supervisor holds one end of a pipe, whose closing tells the keeper. The keeper needs
the standard library alone, to cost next to nothing, and is recorded itself: another cleanup ends the keeper first.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

MARKER = "FAIRLEAD_LOCAL_RUN"
"""Environment variable of every process of a fleet: the folder of its records."""
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process. `started` tells apart successive processes with the same `pid`."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """Whether the process runs; a zombie does not."""
        return start_time(self.pid) == self.started


def start_time(pid: int) -> str | None:
    """Start time of the process, in the notation of the system; None = no such process runs."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return listed.stdout.strip() or None
    try:
        # The name of the command, in parentheses, may contain anything; the fields behind it are separated by spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, started = fields[0], fields[19]
    return None if state in "ZX" else started


def identify(pid: int) -> ProcessId | None:
    """The running process with this number; None = no such process."""
    started = start_time(pid)
    return ProcessId(pid, started) if started else None


class ProcessRecords:
    """The records of one fleet: `folder/PID.json`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.marker = {MARKER: str(folder)}
        """Variables in the environment of every process of this fleet."""

    def add(self, pid: int, name: str) -> None:
        """Records a process that was just started, unless the process has ended."""
        if process := identify(pid):
            record = {"pid": pid, "started": process.started, "name": name}
            (self._folder / f"{pid}.json").write_text(json.dumps(record), encoding="utf-8")

    def remove(self, pid: int) -> None:
        (self._folder / f"{pid}.json").unlink(missing_ok=True)

    def running(self) -> list[ProcessId]:
        """Running processes that were recorded, or carry the marker."""
        found = {}
        for path in self._folder.glob("*.json"):
            with suppress(ValueError, KeyError, FileNotFoundError):  # written halfway: the marker finds the process
                record = json.loads(path.read_text(encoding="utf-8"))
                process = ProcessId(record["pid"], record["started"])
                if process.alive:
                    found[process.pid] = process
        for pid in _marked(self._folder):
            if pid not in found and (marked := identify(pid)):
                found[pid] = marked
        return list(found.values())

    def stop_all(self, grace_seconds: float) -> int:
        """Ends all running processes: asks first, kills after `grace_seconds`. Returns the number of processes."""
        processes = self.running()
        stop(processes, grace_seconds)
        stop(self.running(), 0.0)  # what they started in their last moments
        for path in self._folder.glob("*.json"):
            path.unlink(missing_ok=True)
        return len(processes)


def stop(processes: Iterable[ProcessId], grace_seconds: float) -> None:
    """Sends SIGTERM, then after `grace_seconds` SIGKILL to the process groups of processes that still run."""
    left = list(processes)
    if grace_seconds > 0:
        for process in left:
            signal_process(process, signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        while left and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            left = [process for process in left if process.alive]
    for process in left:
        signal_group(process.pid, signal.SIGKILL)
        signal_process(process, signal.SIGKILL)
    deadline = time.monotonic() + 5.0
    while any(process.alive for process in left) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def signal_process(process: ProcessId, number: signal.Signals) -> None:
    """Signals the process, never a later process with the same number."""
    if process.alive:
        with suppress(ProcessLookupError):  # ended in between
            os.kill(process.pid, number)


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signals the process group that `pid` leads, if it leads one."""
    with suppress(ProcessLookupError):
        if os.getpgid(pid) == pid != os.getpgrp():
            os.killpg(pid, number)


def _marked(folder: Path) -> list[int]:
    """Processes with the fleet's marker in their environment, where the system shows environments."""
    wanted = f"{MARKER}={folder}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue  # another user's, or gone
    return [pid for pid in found if pid != os.getpid()]


_GRACE_SECONDS = 3.0


@contextmanager
def keeper(folder: Path) -> Iterator[None]:
    """Within the block, processes recorded in `folder` end soon after this process, however this process ends."""
    records = ProcessRecords(folder)
    command = [sys.executable, "-m", __name__, str(folder)]
    environment = {**os.environ, **records.marker}
    # In a session of its own: the terminal's signals to the group of the supervisor do not reach the keeper.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=environment) as process:
        records.add(process.pid, "keeper")
        try:
            yield
        finally:
            process.terminate()
            records.remove(process.pid)


def _main(folder: Path) -> None:
    sys.stdin.buffer.read()
    for grace_seconds in (_GRACE_SECONDS, 0.0):  # the second time for what they started in their last moments
        left = ProcessRecords(folder).running() if folder.is_dir() else []
        stop([process for process in left if process.pid != os.getpid()], grace_seconds)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
