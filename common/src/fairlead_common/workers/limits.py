"""Limits of one program: seconds of processors, by the CPU clock of the process, and memory."""

import resource
import sys
import time
from pathlib import Path

import msgspec

_CPUCLOCK_SCHED = 2
_STEP = 16 * 2**20
"""Bytes of memory by which a limit is raised or lowered."""


class WorkerLimits(msgspec.Struct, frozen=True):
    """Limits of one program. Each limit grows with the size of the input, as the work does."""

    slice_seconds: float = 0.05
    """Seconds of a processor for a job in the shared process; a longer job starts again in a process of its own."""
    slice_seconds_per_byte: float = 40e-9
    job_seconds: float = 0.5
    job_seconds_per_byte: float = 20e-6
    """Tokenising takes about one microsecond a byte."""
    slow_seconds: float = 0.1
    slow_seconds_per_byte: float = 4e-6
    """A program whose last long job took more is slow; slow programs share a part of the places."""
    load_seconds: float = 5.0
    load_seconds_per_byte: float = 5e-6
    trial_seconds: float = 2.0
    trial_seconds_per_byte: float = 0.2e-6
    """For loading a program with a plain alternative, which is loaded after an excess."""
    load_memory_per_byte: int = 24
    """Public tokenizers take up to 24: the 33 MiB of Gemma 3 take some 800 MiB during loading."""
    most_load_memory: int = 2**30
    """Most bytes for loading: a container has to hold one load besides all other memory."""
    memory_bytes: int = 96 * 2**20
    """Beyond what the process has when it begins."""
    memory_per_byte: int = 256
    """Tokenising takes some two hundred."""
    most_bytes: int = 2**20
    """Input size up to which `memory_per_byte` applies; further bytes get four times their size."""

    def slice(self, num_bytes: int) -> float:
        """Seconds for a job of this size in the shared process."""
        return self.slice_seconds + num_bytes * self.slice_seconds_per_byte

    def seconds(self, num_bytes: int) -> float:
        """For a job of this size."""
        return self.job_seconds + num_bytes * self.job_seconds_per_byte

    def is_slow(self, seconds: float, num_bytes: int) -> bool:
        """Whether a job of this size took longer than jobs of sound programs."""
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
    """Processor seconds of a process; wall-clock seconds where the system does not tell. Raises OSError without such a
    process."""
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED) if sys.platform == "linux" else time.monotonic()


class MemoryLimit:
    """Limit of address space of the current process, beyond the size at construction."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._base = _address_bytes()
        self._allowed = 0

    def allow(self, num_bytes: int) -> None:
        """Sets the limit for a job of this size. Beyond the limit, Python raises MemoryError and Rust ends the
        process."""
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
