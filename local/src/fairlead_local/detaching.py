"""A supervisor in a process of its own, watched until it is ready or has failed: then let go (`up --detach`), or owned
by the starter (`owned_fleet`: the demo, benchmarks, tests).

The standard input of the supervisor is a pipe of the starter. The end of the starter closes the pipe, and the
supervisor ends too, even where no handler runs, unless the starter let the supervisor go before.
"""

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead_local.fleet_state import FleetError, FleetFolder, FleetPhase, read_state

_POLL_SECONDS = 0.1
_STOP_SECONDS = 20.0
_EXPLAINED = re.compile(r"^error: ", re.MULTILINE)

Write = Callable[[str], None]
"""Takes the output of a supervisor piece by piece."""


class DetachedSupervisor:
    """`fairlead local up ARGUMENTS` in the background. Raises FleetError when its log cannot be written."""

    def __init__(self, folder: FleetFolder, arguments: Sequence[str]) -> None:
        self._folder = folder
        command = [sys.executable, "-m", "fairlead", "local", "up", "--data-dir", str(folder.path), *arguments]
        with folder.lock() as lock:
            folder.description.unlink(missing_ok=True)
            try:
                with folder.log.open("wb") as log:
                    self._process = subprocess.Popen(
                        [*command, "--detached", str(lock)],
                        stdin=subprocess.PIPE,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        pass_fds=[lock],
                    )
            except OSError as error:
                raise folder.unwritable(error) from error

    def wait_until_ready(self, write: Write) -> int:
        """Passes output on until the fleet is ready. Returns 0 then, or the exit status of the supervisor. Raises
        FleetError where the supervisor ended without an explanation because the disk takes no writes."""
        with self._folder.log.open(encoding="utf-8", errors="replace") as log:
            explained = False
            while True:
                status = self._process.poll()
                state = read_state(self._folder)
                ready = state is not None and state.pid == self._process.pid and state.phase is FleetPhase.READY
                if ready or status is not None:
                    time.sleep(_POLL_SECONDS)  # its last words
                said = log.read()
                explained = explained or _EXPLAINED.search(said) is not None
                write(said)
                if ready:
                    return 0
                if status is not None:
                    if status and not explained:
                        self._folder.check_room()
                    return status
                time.sleep(_POLL_SECONDS)

    def let_go(self) -> None:
        """Lets the supervisor go on after the end of this process."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the supervisor has ended already
            self._process.stdin.write(b"\n")
            self._process.stdin.close()

    def end(self) -> int:
        """Ends the supervisor, in order if possible; returns the exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its keeper ends the rest
            return self._process.wait()


def start_detached(folder: FleetFolder, arguments: Sequence[str], write: Write) -> int:
    """`up --detach`: 0 once the fleet is ready, else the exit status of the supervisor. Raises FleetError."""
    supervisor = DetachedSupervisor(folder, arguments)
    try:
        if status := supervisor.wait_until_ready(write):
            return status
    except BaseException:
        supervisor.end()
        raise
    supervisor.let_go()
    return 0


_ANY_PORTS = ("--api-port", "0", "--gateway-port", "0")
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class OwnedFleet:
    """Addresses of a running fleet: base URL of the gateway, and a kubeconfig for the API."""

    gateway: str
    kubeconfig: Path


@contextmanager
def owned_fleet(folder: Path, arguments: Sequence[str] = (), *, write: Write) -> Iterator[OwnedFleet]:
    """`fairlead local up ARGUMENTS` on free ports. `write` takes the output. Raises FleetError on failure.

    SIGTERM and SIGHUP end the block as Ctrl-C does. No signal interrupts the end, which takes seconds.
    """
    data = FleetFolder(folder)
    with _signals(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP):
        supervisor = DetachedSupervisor(data, [*_ANY_PORTS, *arguments])
        try:
            if status := supervisor.wait_until_ready(write):
                raise FleetError(f"`fairlead local up` ended with status {status}")
            state = read_state(data)
            assert state is not None
            yield OwnedFleet(state.gateway, data.kubeconfig)
        finally:
            with _signals(lambda *_: None, *_ENDING):  # unlike SIG_IGN, not inherited by child processes
                status = supervisor.end()
        if status:
            raise FleetError(f"the fleet's supervisor ended with status {status}")


@contextmanager
def temporary_fleet(prefix: str, *, write: Write) -> Iterator[OwnedFleet]:
    """An owned fleet in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix=prefix) as folder, owned_fleet(Path(folder), write=write) as fleet:
        yield fleet


@contextmanager
def _signals(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
