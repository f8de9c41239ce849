"""A file for libraries that take only paths: in memory, where the system has memory files, and gone with the process;
only the user of the process may read the file.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def memory_file(content: bytes, name: str) -> Iterator[str]:
    """The path of a file with the given content, for the present process. `name`: for people who look at open files."""
    if not hasattr(os, "memfd_create") or not Path("/proc/self/fd").is_dir():
        with tempfile.NamedTemporaryFile(prefix=f"{name}-") as file:
            file.write(content)
            file.flush()
            yield file.name
        return
    with os.fdopen(os.memfd_create(name, os.MFD_CLOEXEC), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"
