"""Keeping the threads of a CPU's operations on cores of their own.

A thread that moves leaves its cache behind, and on a machine with several memory nodes its weights. But a core that
another process is bound to as well serves both badly: so this is for a process that has been given cores.
"""

import logging
import os
import threading
from pathlib import Path

import torch

from fairlead_engine.errors import ConfigError
from fairlead_engine.model.shard import Shard

logger = logging.getLogger(__name__)

_CPUS = Path("/sys/devices/system/cpu")
_ENOUGH = 2**16
"""Elements for each thread that torch divides an operation among all of them."""
_bound: dict[int, set[int]] = {}
"""Threads, of which torch begins those that compute beside the one that asks once, and the cores that they were given.
"""


def pin_threads(pin: bool | None, shard: Shard) -> None:
    """Binds each of torch's threads, the calling one included, to a core; the ranks' to different ones.

    Call it where what runs operations is, before any ran. None = only where this process may not use every core of the
    machine, as with Kubernetes' static CPU manager. Raises ConfigError where they are to be bound and there are fewer
    cores than threads.
    """
    if not hasattr(os, "sched_setaffinity"):
        if pin:
            raise ConfigError("pin_threads", "is set, and threads can be bound on Linux only", "leave it out")
        return
    allowed = os.sched_getaffinity(0)
    if threading.get_native_id() in _bound or pin is False or (pin is None and len(allowed) == os.cpu_count()):
        return
    num_threads = torch.get_num_threads()
    if pin and num_threads * shard.size > len(allowed):
        wanted = f"{num_threads} threads" + (f" of each of {shard.size} ranks" if shard.size > 1 else "")
        raise ConfigError(
            "pin_threads",
            f"is set, and {wanted} need more cores than the {len(allowed)} that are here",
            "lower num-threads",
        )
    cores = own_cores(allowed)[shard.rank * num_threads :][:num_threads]
    threads = [threading.get_native_id(), *_begun(num_threads)]
    if len(threads) != num_threads or len(cores) < num_threads:
        logger.warning("threads are not bound: %d were found for %d on %d cores", len(threads), num_threads, len(cores))
        return
    for thread, core in zip(threads, cores, strict=True):
        os.sched_setaffinity(thread, {core})
    _bound.update(dict.fromkeys(threads, allowed))
    logger.info("bound %d threads to cores %s", num_threads, ", ".join(map(str, cores)))


def given_cores() -> set[int]:
    """That operations of the calling thread may use. One that is bound sees only its own, and may ask for a second
    model."""
    return _bound.get(threading.get_native_id()) or os.sched_getaffinity(0)


def own_cores(allowed: set[int], cpus: Path = _CPUS) -> list[int]:
    """The logical CPUs in the order in which to use them: one of each core first, then what shares a core with them."""
    first: list[int] = []
    second: list[int] = []
    seen: set[str] = set()
    for cpu in sorted(allowed):
        try:
            core = (cpus / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:  # not told, as in some containers
            core = str(cpu)
        (second if core in seen else first).append(cpu)
        seen.add(core)
    return first + second


def _begun(num_threads: int) -> list[int]:
    """The threads that torch computes with beside this one, which the first large operation begins."""
    before = _threads()
    torch.ones(_ENOUGH * num_threads).add_(1)
    return sorted(_threads() - before)


def _threads() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}
