"""A folder for the sockets between processes of one engine, which only this user may enter. A process that is killed
cannot remove it: the next one that starts does.
"""

import fcntl
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path

log = logging.getLogger(__name__)

_PREFIX = "fairlead-core-"
_LONGEST_SOCKET_PATH = 100
"""A Unix socket's path is limited to 107 bytes on Linux and 103 on macOS."""
_YOUNG_SECONDS = 60.0
"""One that was made so recently may not be locked yet."""


class SocketFolder:
    """Held by a lock, which ends with the process, however that ends."""

    def __init__(self) -> None:
        self.path = _private_folder()
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sweep(self.path.parent)

    def remove(self) -> None:
        """Once nobody needs the sockets' names any more."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def sweep(place: Path, young_seconds: float = _YOUNG_SECONDS) -> None:
    """Removes this user's folders of processes that are gone."""
    for path in place.glob(f"{_PREFIX}*"):
        try:
            facts = path.lstat()
            if facts.st_uid != os.geteuid() or time.time() - facts.st_mtime < young_seconds:
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # it has gone meanwhile, or is no folder
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
            log.info("removed what a killed process has left", extra={"folder": str(path)})
        except OSError:  # somebody has it
            pass
        finally:
            os.close(descriptor)


def _private_folder() -> Path:
    """With a path short enough for a socket in it."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    if len(os.fsencode(folder)) <= _LONGEST_SOCKET_PATH - len("/1000"):
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
