"""Processes that outlive the command that starts them: known by PID and start time, so no stranger is ever killed."""

import json
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.commands import ClusterError, tail

_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Process:
    """A process that cannot be mistaken for a later one with its number: `started` is in clock ticks since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """The process that has this number, or None when there is none or only its unreaped remains."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()  # the name before it may hold anything
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        return Process.of(self.pid) == self

    def signal(self, number: int) -> None:
        """Sends a signal, unless the process is gone."""
        if self.alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass  # it left between the two lines

    def wait_gone(self, seconds: float) -> bool:
        """Waits until the process is gone; False when it still is there after `seconds`."""
        deadline = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > deadline:
                return False
            _reap(self.pid)
            time.sleep(_POLL_SECONDS)
        _reap(self.pid)
        return True


def _reap(pid: int) -> None:
    """Collects the process if it is our own child; another parent collects its own."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def stop(processes: Iterable[Process], patience_seconds: float = 10.0) -> None:
    """Asks each process in turn to end, and kills those that do not. Without patience they are killed at once."""
    for process in processes:
        if patience_seconds > 0:
            process.signal(signal.SIGTERM)
            if process.wait_gone(patience_seconds):
                continue
        process.signal(signal.SIGKILL)
        process.wait_gone(max(patience_seconds, 10.0))


def spawn(argv: Sequence[str | Path], environment: Mapping[str, str], stdout: int, stderr: int) -> int:
    """Starts a program that is to outlive this one: own session, no input, `/` as its folder. Returns its number.

    (subprocess.Popen would complain of every such child that it forgets.)
    """
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, stdout, 1),
        (os.POSIX_SPAWN_DUP2, stderr, 2),
    ]
    words = ["env", "--chdir=/", *map(str, argv)]
    return os.posix_spawn("/usr/bin/env", words, environment, file_actions=files, setsid=True)


def children(pid: int) -> list[int]:
    """The numbers of a process's children."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(folder.name))
    return found


@dataclass
class Record:
    """What one `up` has made on this host, kept in a file that is written *before* each thing is made.

    So whatever a killed `up` leaves behind, the next command knows it. Numbers of processes mean nothing after a
    reboot, which the boot's own id tells.
    """

    file: Path
    mode: str = "node"
    build: str = ""
    upgrading_to: str = ""
    """The build that is to replace `build`, while some components are of the one and some of the other."""
    boot: str = field(default_factory=lambda: boot_id())
    mounted_netns_folder: bool = False
    """Whether `ip netns add` found /run/netns unmounted, and so mounted it."""
    processes: dict[str, Process] = field(default_factory=dict)
    """In the order of their start. In node mode the first is the anchor: PID 1 of the node's namespaces."""

    @classmethod
    def read(cls, file: Path) -> "Record | None":
        """The record in `file`; None when there is none. A torn one counts as one that lists no process."""
        try:
            content: dict[str, Any] = json.loads(file.read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            return cls(file)
        processes = {name: Process(*pair) for name, pair in content.pop("processes").items()}
        return cls(file, processes=processes, **content)

    def save(self) -> None:
        content = {
            "mode": self.mode,
            "build": self.build,
            "upgrading_to": self.upgrading_to,
            "boot": self.boot,
            "mounted_netns_folder": self.mounted_netns_folder,
            "processes": {name: [process.pid, process.started] for name, process in self.processes.items()},
        }
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=2) + "\n")
        partial.replace(self.file)

    def living(self) -> dict[str, Process]:
        """Those of its processes that still run."""
        if self.boot != boot_id():
            return {}
        return {name: process for name, process in self.processes.items() if process.alive}


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass
class Starter:
    """Starts components in the background, each with its log file; `prefix` is what enters their namespaces."""

    record: Record
    logs: Path
    environment: Mapping[str, str]
    prefix: tuple[str, ...] = ()
    _pids: dict[str, int] = field(default_factory=dict)

    def start(self, name: str, *argv: str | Path, **environment: str) -> None:
        """Starts a component and puts it on record."""
        with (self.logs / f"{name}.log").open("ab") as log:
            pid = spawn([*self.prefix, *argv], {**self.environment, **environment}, log.fileno(), log.fileno())
        self._pids[name] = pid
        process = Process.of(pid)
        if process is not None:
            self.record.processes[name] = process
            self.record.save()

    def check(self) -> None:
        """Raises ComponentFailed, with the end of its log, when a component that was started has ended."""
        for name, pid in self._pids.items():
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                problem = f"{name} ended with status {os.waitstatus_to_exitcode(status)}"
                raise ComponentFailed(name, problem, self.logs)


class ComponentFailed(ClusterError):
    """A component of the cluster does not do its part; the message ends with its log's last lines."""

    def __init__(self, component: str, problem: str, logs: Path) -> None:
        file = logs / f"{component}.log"
        text = tail(file.read_text(errors="replace")) if file.exists() else ""
        super().__init__(f"{problem}. The end of its log:\n{text or '(empty)'}")
        self.component = component
