"""Processes of this machine, told apart from later ones with the same number, and how to end them for sure.

Every process of a fleet is recorded in a folder when it starts and carries the folder's name in its environment. So
everything can be found and ended by somebody who did not start it, after a crash too.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MARKER = "FAIRLEAD_LOCAL_RUN"
"""Environment variable of every process of a fleet: the folder of its records."""
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process. `started` tells it from another that got the same `pid` later."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """Whether it still runs; one that ended and was not yet waited for does not."""
        return start_time(self.pid) == self.started


def start_time(pid: int) -> str | None:
    """When the process started, in the system's own notation; None when it does not run (any more)."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return listed.stdout.strip() or None
    try:
        # The command's name, in parentheses, may contain anything; what follows it is separated by spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, started = fields[0], fields[19]
    return None if state in "ZX" else started


def identify(pid: int) -> ProcessId | None:
    """The running process with this number, None when there is none."""
    started = start_time(pid)
    return ProcessId(pid, started) if started else None


class ProcessRecords:
    """The records of one fleet: `folder/PID.json`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    @property
    def marker(self) -> dict[str, str]:
        """What a process of this fleet has in its environment."""
        return {MARKER: str(self._folder)}

    def add(self, pid: int, name: str) -> None:
        """Records a process that was just started; nothing if it ended already."""
        if process := identify(pid):
            record = {"pid": pid, "started": process.started, "name": name}
            (self._folder / f"{pid}.json").write_text(json.dumps(record), encoding="utf-8")

    def remove(self, pid: int) -> None:
        (self._folder / f"{pid}.json").unlink(missing_ok=True)

    def running(self) -> list[ProcessId]:
        """Recorded processes that still run, and marked ones that were never recorded."""
        found = {process.pid: process for process in self._recorded() if process.alive}
        for pid in _marked(self._folder):
            if pid not in found and (process := identify(pid)):
                found[pid] = process
        return list(found.values())

    def stop_all(self, grace_seconds: float) -> int:
        """Ends everything that runs: asks first, kills after `grace_seconds`. Returns how many processes there were."""
        processes = self.running()
        stop(processes, grace_seconds)
        stop(self.running(), 0.0)  # what they started in their last moments
        for path in self._folder.glob("*.json"):
            path.unlink(missing_ok=True)
        return len(processes)

    def _recorded(self) -> Iterable[ProcessId]:
        for path in self._folder.glob("*.json"):
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
                yield ProcessId(record["pid"], record["started"])
            except (ValueError, KeyError, FileNotFoundError):
                continue  # written halfway: the marker finds the process


def stop(processes: Iterable[ProcessId], grace_seconds: float) -> None:
    """SIGTERM, then after `grace_seconds` SIGKILL to the whole process group of each that still runs."""
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
    """Signals the very process, not another with its number."""
    if process.alive:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            pass  # it ended in between, which is what was wanted


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signals the process group that `pid` leads, if it leads one."""
    try:
        if os.getpgid(pid) == pid != os.getpgrp():
            os.killpg(pid, number)
    except ProcessLookupError:
        pass


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
