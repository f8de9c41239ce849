"""The data folder of a fleet: paths, the running supervisor, and the phase of the fleet.

Written by the supervisor, read by every other `fairlead local` command.
"""

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from fairlead_local.kubelet.process_table import ProcessId, identify

DATA_VARIABLE = "FAIRLEAD_DATA_DIR"


_LITTLE = 4096
"""Bytes of room to check for: more than the output of a supervisor."""
_NOT_TAKEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class FleetError(Exception):
    """A fleet cannot be started, found or stopped; the text says why and what to do."""


class FleetPhase(StrEnum):
    """How far a supervisor got."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


class FleetFolder:
    """The data folder of one fleet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kubeconfig = path / "kubeconfig"
        self.state = path / "state"
        """The objects of the API, kept from one `up` to the next."""
        self.records = path / "run"
        """Processes that run."""
        self.claims = (path / "volumes").absolute()
        """Files of PersistentVolumeClaims, by namespace and name."""
        self.pods = path / "pods"
        """Volumes and logs of the pods that run, by uid."""
        self.models = (path / "models").absolute()
        """Downloaded models, kept from one `up` to the next."""
        self.log = path / "fleet.log"
        """Output of a detached supervisor."""
        self.operator_settings = path / "operator.yaml"
        self.description = path / "fleet.json"

    @contextmanager
    def lock(self, inherited: int | None = None) -> Iterator[int]:
        """Held by the supervisor, and released by the system at its end. Raises FleetError when another process holds
        the lock.

        Yields the descriptor of the lock. A child process may take it over (`inherited`), which leaves no moment for
        another process to take the lock.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = (self.path / "lock").open("w") if inherited is None else os.fdopen(inherited, "w")
        except OSError as error:
            raise self.unwritable(error) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                running, found = read_state(self), "a fleet is being started already"
                if running is not None and running.phase is FleetPhase.READY:
                    found = f"a fleet is already running at {running.api}"
                text = f"{found} in {self.path}: stop it first with `{self.command('down')}`"
                raise FleetError(text) from error
            yield file.fileno()

    def unwritable(self, error: OSError) -> FleetError:
        """The error for a failed write."""
        return FleetError(f"cannot write to {self.path} ({error.strerror}): choose another folder with --data-dir")

    def check_room(self) -> None:
        """Raises FleetError where a few bytes cannot be written."""
        probe = self.path / "room"
        try:
            probe.write_bytes(bytes(_LITTLE))
        except OSError as error:
            raise self.unwritable(error) from error
        finally:
            probe.unlink(missing_ok=True)

    def command(self, verb: str) -> str:
        """The command line of another command on this fleet."""
        return f"fairlead local {verb}" + ("" if self.path == default_folder() else f" --data-dir {self.path}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """The contents of `fleet.json`. `api` and `gateway` are base URLs, empty before they are known."""

    pid: int
    started: str
    phase: FleetPhase
    message: str = ""
    api: str = ""
    gateway: str = ""

    @property
    def supervisor(self) -> ProcessId:
        return ProcessId(self.pid, self.started)


def default_folder() -> Path:
    """$FAIRLEAD_DATA_DIR, else ~/.fairlead/local."""
    named = os.environ.get(DATA_VARIABLE)
    return (Path(named) if named else Path.home() / ".fairlead" / "local").expanduser().absolute()


def write_state(folder: FleetFolder, phase: FleetPhase, **facts: str) -> FleetState:
    """Writes and returns the state of this process. `facts`: message, api, gateway."""
    own = identify(os.getpid())
    state = FleetState(pid=os.getpid(), started=own.started if own else "", phase=phase, **facts)
    fresh = folder.description.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(state)), encoding="utf-8")
    fresh.replace(folder.description)
    return state


def disk_fault(error: BaseException) -> OSError | None:
    """The error of a full or read-only disk that is `error` or caused it; None = another error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _NOT_TAKEN:
            return cause
        cause = cause.__cause__
    return None


def read_state(folder: FleetFolder) -> FleetState | None:
    """The state written by the last supervisor, which may have ended; None = no supervisor ran."""
    try:
        written = json.loads(folder.description.read_text(encoding="utf-8"))
        return FleetState(**{**written, "phase": FleetPhase(written["phase"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def running_fleet(folder: FleetFolder) -> FleetState | None:
    """The state of the running fleet of this folder; None = no fleet runs."""
    state = read_state(folder)
    return state if state and state.supervisor.alive else None


def running_gateway() -> str:
    """Base URL of the gateway of the fleet in the default folder; empty = no fleet runs."""
    fleet = running_fleet(FleetFolder(default_folder()))
    return fleet.gateway if fleet is not None else ""
