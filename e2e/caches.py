"""Where tests keep what they build or fetch once, outside the checkout, and how one process at a time makes it."""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path


def cache(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder `name` below $FAIRLEAD_CACHE, or below ~/.cache/fairlead where that is not set or empty."""
    chosen = environment.get("FAIRLEAD_CACHE")
    return (Path(chosen) if chosen else Path.home() / ".cache" / "fairlead").resolve() / name


@contextmanager
def alone(lock: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds a lock file, made where it is missing. Calls `waiting` once where another process holds it.

    The kernel gives the lock back when its holder ends, however that happens.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


@contextmanager
def using(folder: Path) -> Iterator[None]:
    """While it lasts nobody removes what is in the folder. Several may use one at a time."""
    with _lock(folder, fcntl.LOCK_SH):
        yield


@contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Whether nobody is `using` the folder; if so, nobody begins to while it lasts."""
    with ExitStack() as held:
        try:
            held.enter_context(_lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


@contextmanager
def _lock(folder: Path, operation: int) -> Iterator[None]:
    """Locks a folder itself, which leaves no file. Raises FileNotFoundError, and BlockingIOError with LOCK_NB."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, operation)
        yield
    finally:
        os.close(held)
