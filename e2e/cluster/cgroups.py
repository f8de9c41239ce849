"""The node's own branch of each cgroup hierarchy: made before the kubelet starts, removed when all in it is gone."""

import time
from dataclasses import dataclass
from pathlib import Path

CONTROLLERS = ("blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids")
"""What the kubelet needs as cgroup v1 hierarchies."""


@dataclass(frozen=True)
class Hierarchy:
    """A mounted cgroup hierarchy; a version-1 one has its controllers among the mount options."""

    folder: Path
    version: int
    options: frozenset[str]


def hierarchies(mounts: str | None = None) -> list[Hierarchy]:
    """The mounted hierarchies; `mounts` is text in the form of /proc/self/mounts, by default the machine's own."""
    found = []
    for line in (Path("/proc/self/mounts").read_text() if mounts is None else mounts).splitlines():
        _, folder, kind, options, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            found.append(Hierarchy(Path(folder), 1 if kind == "cgroup" else 2, frozenset(options.split(","))))
    return found


def missing_controllers(present: list[Hierarchy]) -> list[str]:
    """The controllers that no version-1 hierarchy has."""
    have = {option for hierarchy in present if hierarchy.version == 1 for option in hierarchy.options}
    return [controller for controller in CONTROLLERS if controller not in have]


def create(name: str) -> None:
    """Makes the branch `name` in every version-1 hierarchy."""
    for hierarchy in hierarchies():
        if hierarchy.version != 1:
            continue
        branch = hierarchy.folder / name
        branch.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):  # a new cpuset is empty, and takes no process until it is not
            if (branch / setting).exists():
                (branch / setting).write_text((hierarchy.folder / setting).read_text())


def leftovers(name: str) -> list[Path]:
    """The branches of that name that exist."""
    return [hierarchy.folder / name for hierarchy in hierarchies() if (hierarchy.folder / name).is_dir()]


def remove(name: str, patience_seconds: float = 10.0) -> list[Path]:
    """Removes the branches and all below them; returns those that still hold processes after `patience_seconds`."""
    deadline = time.monotonic() + patience_seconds
    while remaining := [branch for branch in leftovers(name) if not _remove_tree(branch)]:
        if time.monotonic() > deadline:
            return remaining
        time.sleep(0.1)
    return []


def _remove_tree(branch: Path) -> bool:
    for folder in sorted((path for path in branch.rglob("*") if path.is_dir()), reverse=True):
        _remove(folder)
    return _remove(branch)


def _remove(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        pass
    except OSError:
        return False  # the kernel lets go of the last process a moment after it has ended
    return True
