"""Where tests keep what they build or fetch once, outside the checkout: how one process at a time makes it, and which
builds go again. A build is a folder of its own in a cache, with a `build.json` in it; it appears and goes at once.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

RECORD = "build.json"
"""What makes a folder of a cache a finished build."""
_LOCK = ".prune.lock"
_GOING = ".removed-"
"""Begins the name of a build that is being removed: nobody takes half of one for a whole one."""

Say = Callable[[str], None]
"""Takes one sentence about what is done."""


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
    """While it lasts nobody removes the folder, or what is in it. Several may use one at a time.

    Raises FileNotFoundError where it is gone. It counts as used now, which decides what is removed later. Programs that
    are to go on running after the block need nothing more: `pruned` sees them.
    """
    with _lock(folder, fcntl.LOCK_SH):
        if not folder.is_dir():
            raise FileNotFoundError(folder)  # it was removed while we waited for the lock
        try:
            os.utime(folder)
        except OSError:
            pass  # somebody else's cache, which may be read only
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
def pruned(root: Path, say: Say) -> Iterator[None]:
    """When the block has added a build to `root`, older ones go: all but the one used last, and those in use."""
    before = builds(root)
    yield
    if added := builds(root) - before:
        with alone(root / _LOCK, lambda: None):
            _remove_older(builds(root) - added, say)
            for half_gone in root.glob(f"{_GOING}*"):  # its remover was killed
                shutil.rmtree(half_gone)


def builds(root: Path) -> set[Path]:
    """The finished builds in a cache. What else is in it (locks, work that is under way) is none."""
    found = (record.parent for record in root.glob(f"*/{RECORD}"))
    return {folder for folder in found if not folder.is_symlink() and not folder.name.startswith(".")}


def _remove_older(others: set[Path], say: Say) -> None:
    by_use = sorted(others, key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in by_use[1:]:
        with unused(folder) as free:
            if not free or _has_running_program(folder):
                say(f"an older build stays, because it is in use: {folder}")
                continue
            going = folder.rename(folder.with_name(f"{_GOING}{folder.name}"))
            shutil.rmtree(going)
            say(f"removed an older build: {folder}")


def _has_running_program(folder: Path) -> bool:
    """Compared by inode: processes in another mount namespace have other paths."""
    files = {_identity(file) for file in folder.rglob("*") if file.is_file()} - {None}
    return any(_identity(program) in files for program in Path("/proc").glob("[0-9]*/exe"))


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:  # a process that has ended, a thread of the kernel, or somebody else's process
        return None
    return status.st_dev, status.st_ino


@contextmanager
def _lock(folder: Path, operation: int) -> Iterator[None]:
    """Locks a folder itself, which leaves no file. Raises FileNotFoundError, and BlockingIOError with LOCK_NB."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, operation)
        yield
    finally:
        os.close(held)
