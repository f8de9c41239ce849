"""`up --detach`: the same supervisor in a process of its own, watched until it is ready or has failed."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from fairlead.local.fleet_state import FleetError, FleetFolder, Phase, read_state
from fairlead.local.kubelet.process_table import identify, stop

_POLL_SECONDS = 0.1
_STOP_SECONDS = 20.0


def start_detached(folder: FleetFolder, arguments: Sequence[str], write: Callable[[str], None]) -> int:
    """Starts `fairlead local up ARGUMENTS` in the background and passes on what it says until it is ready.

    Returns 0 then, or the exit status it ended with. On KeyboardInterrupt it is stopped before the exception goes on.
    Raises FleetError when the log cannot be written.
    """
    command = [sys.executable, "-m", "fairlead", "local", "up", "--detached", *arguments]
    folder.description.unlink(missing_ok=True)
    try:
        with folder.log.open("wb") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
    except OSError as error:
        text = f"cannot write to {folder.path} ({error.strerror}): choose another folder with --data-dir"
        raise FleetError(text) from error
    try:
        return _watch(folder, child, write)
    except KeyboardInterrupt:
        if process := identify(child.pid):
            stop([process], _STOP_SECONDS)
        raise


def _watch(folder: FleetFolder, child: "subprocess.Popen[bytes]", write: Callable[[str], None]) -> int:
    with folder.log.open(encoding="utf-8", errors="replace") as log:
        while True:
            status = child.poll()
            state = read_state(folder)
            ready = state is not None and state.pid == child.pid and state.phase is Phase.READY
            if ready or status is not None:
                time.sleep(_POLL_SECONDS)  # its last words
            write(log.read())
            if ready:
                return 0
            if status is not None:
                return status
            time.sleep(_POLL_SECONDS)
