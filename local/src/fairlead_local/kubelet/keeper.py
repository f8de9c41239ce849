"""Ends the processes of a supervisor that was killed: a small process that outlives it and has nothing else to do.

`keeper` is held by the supervisor; the rest of this file is what the other process runs. It learns of the end by a pipe
that nobody else holds, and needs the standard library alone, so that it costs next to nothing. It is on record itself:
whoever else tidies up after the supervisor ends it first, and then starts what it likes.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead_local.kubelet.process_table import ProcessRecords, stop

_GRACE_SECONDS = 3.0


@contextmanager
def keeper(folder: Path) -> Iterator[None]:
    """Within the block, what is recorded in `folder` ends soon after this process, however this process ends."""
    records = ProcessRecords(folder)
    command = [sys.executable, "-m", __name__, str(folder)]
    environment = {**os.environ, **records.marker}
    # In a session of its own: what a terminal sends to the supervisor's group is not for it.
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
