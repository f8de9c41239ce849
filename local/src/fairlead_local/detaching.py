"""A supervisor in a process of its own, watched until it is ready or has failed: let go after that (`up --detach`), or
kept for as long as somebody needs it (`owned.py`).

The supervisor's standard input is a pipe that only its starter holds. Whatever ends the starter closes the pipe, and
the supervisor ends with it, unless it was let go before.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from fairlead_local.fleet_state import FleetFolder, FleetPhase, read_state

_POLL_SECONDS = 0.1
_STOP_SECONDS = 20.0
_EXPLAINED = re.compile(r"^error: ", re.MULTILINE)

Write = Callable[[str], None]
"""Takes what a supervisor says, as it comes."""


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
        """Passes on what it says until it is ready. Returns 0 then, or the exit status it ended with. Raises FleetError
        where it ended without a word as to why, because no word could be written."""
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
        """From now on it lives by itself."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended already, for a reason of its own

    def end(self) -> int:
        """Returns its exit status when it has ended, in order if it can."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its keeper ends the rest
            return self._process.wait()


def start_detached(folder: FleetFolder, arguments: Sequence[str], write: Write) -> int:
    """`up --detach`: 0 once the fleet is ready, else the exit status it ended with. Raises FleetError."""
    supervisor = DetachedSupervisor(folder, arguments)
    try:
        if status := supervisor.wait_until_ready(write):
            return status
    except BaseException:
        supervisor.end()
        raise
    supervisor.let_go()
    return 0
