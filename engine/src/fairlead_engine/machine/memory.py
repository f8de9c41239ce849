"""Memory that this process may still take: the machine's, or its container's if less."""

import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = (
    # controllers field in /proc/self/cgroup, mount point, limit, usage, reclaimable part of the usage
    ("", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""cgroup v2 and v1."""


def free_memory(root: Path = Path("/")) -> int:
    """Bytes for allocations without swapping or a kill; `root` has proc and sys."""
    told = [line.split()[1] for line in _lines(root / "proc/meminfo") if line.startswith("MemAvailable:")]
    # Without /proc: all there is.
    on_machine = int(told[0]) * 1024 if told else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(0, min([on_machine, *_free_in_groups(root)]))


def format_bytes(num_bytes: int) -> str:
    """As a person writes it: 1.5 GiB, 64 MiB, 300 B."""
    for exponent, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if num_bytes >= 1024**exponent:
            return f"{num_bytes / 1024**exponent:.1f}".removesuffix(".0") + f" {unit}"
    return f"{num_bytes} B"


def _free_in_groups(root: Path) -> Iterator[int]:
    """Free memory of each control group around this process, from the innermost to the topmost."""
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for field, mount, limit, usage, reclaimable in _GROUPS:
            if field in controllers.split(","):
                own = root / mount / path.lstrip("/")
                depth = len(own.relative_to(root / mount).parts)
                for folder in (own, *own.parents)[: depth + 1]:
                    free = _free_in_group(folder, limit, usage, reclaimable)
                    if free is not None:
                        yield free


def _free_in_group(folder: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    """None = no limit, or invisible inside the container."""
    try:
        bound, used = int((folder / limit).read_text()), int((folder / usage).read_text())
    except (OSError, ValueError):
        return None
    for line in _lines(folder / "memory.stat"):
        name, _, value = line.partition(" ")
        if name == reclaimable:
            used -= int(value)
    return bound - used


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
