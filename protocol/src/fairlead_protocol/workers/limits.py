"""How much one program may take: of processors, by its process's own clock, and of memory."""

import resource
import sys
import time
from pathlib import Path

import msgspec

_CPUCLOCK_SCHED = 2
_STEP = 16 * 2**20
"""Bytes of memory by which a limit is raised or lowered."""


class Limits(msgspec.Struct, frozen=True):
    """What one program may take. Each limit grows with the bytes that it is given, as its work does."""

    slice_seconds: float = 0.05
    """Of a processor, for a job that others wait behind; one that takes longer begins anew beside them."""
    slice_seconds_per_byte: float = 40e-9
    job_seconds: float = 0.5
    job_seconds_per_byte: float = 20e-6
    """Tokenising takes about one microsecond a byte."""
    slow_seconds: float = 0.1
    slow_seconds_per_byte: float = 4e-6
    """A program whose last job beside others took more is slow: those share a part of the places."""
    load_seconds: float = 5.0
    load_seconds_per_byte: float = 5e-6
    trial_seconds: float = 2.0
    trial_seconds_per_byte: float = 0.2e-6
    """For loading a program that has a plain one, which is loaded instead where this is exceeded."""
    load_memory_per_byte: int = 24
    """Public tokenizers take up to 24: a text of 33 MiB, as Gemma 3 has it, some 800 MiB while it is read."""
    most_load_memory: int = 2**30
    """Bytes that loading may take at most: a container has to hold one load beside all else."""
    memory_bytes: int = 96 * 2**20
    """Beyond what the process has when it begins."""
    memory_per_byte: int = 256
    """Tokenising takes some two hundred."""
    most_bytes: int = 2**20
    """For which there is so much memory; of what is more, a few times its size."""

    def slice(self, num_bytes: int) -> float:
        """For a job of this size that others wait behind."""
        return self.slice_seconds + num_bytes * self.slice_seconds_per_byte

    def seconds(self, num_bytes: int) -> float:
        """For a job of this size."""
        return self.job_seconds + num_bytes * self.job_seconds_per_byte

    def is_slow(self, seconds: float, num_bytes: int) -> bool:
        """Whether a job of this size took longer than those of sound programs do."""
        return seconds > self.slow_seconds + num_bytes * self.slow_seconds_per_byte

    def memory(self, num_bytes: int) -> int:
        """Bytes for a job of this size."""
        return self.memory_bytes + min(num_bytes, self.most_bytes) * self.memory_per_byte + 4 * num_bytes

    def memory_to_load(self, num_bytes: int) -> int:
        """Bytes for loading what is made of this many."""
        return self.memory_bytes + min(num_bytes * self.load_memory_per_byte, self.most_load_memory)

    def seconds_to_load(self, num_bytes: int, *, is_trial: bool = False) -> float:
        """For loading what is made of this many bytes."""
        most = self.load_seconds + num_bytes * self.load_seconds_per_byte
        return min(most, self.trial_seconds + num_bytes * self.trial_seconds_per_byte) if is_trial else most


def cpu_seconds(pid: int) -> float:
    """What this process has had of processors. Raises OSError where there is none. Where the system does not say, time
    goes by instead."""
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED) if sys.platform == "linux" else time.monotonic()


class MemoryLimit:
    """Of the process that makes it: what it may have of addresses beyond those it has by then."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._base = _address_bytes()
        self._allowed = 0

    def allow(self, num_bytes: int) -> None:
        """For a job of this size. Beyond it, Python raises MemoryError and Rust ends the process."""
        wanted = self._limits.memory(num_bytes)
        wanted += -wanted % _STEP
        if wanted != self._allowed and self._base:
            self._allowed = wanted
            resource.setrlimit(resource.RLIMIT_AS, (self._base + wanted, resource.RLIM_INFINITY))


def _address_bytes() -> int:
    """Of this process; 0 where nobody says."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0
