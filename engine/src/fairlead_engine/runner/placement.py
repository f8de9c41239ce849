"""Device, number format and threads of the model, and the binding of threads to cores.

A thread that moves leaves its cache behind, and on a machine with several memory nodes its weights. But a core with two
bound processes serves both badly: threads are bound only where a process has been given cores.
"""

import logging
import math
import os
import threading
from pathlib import Path

import torch

from fairlead_engine.errors import ConfigError, ModelLoadError, ModelLoadReason
from fairlead_engine.model.shard import ALONE, Shard

logger = logging.getLogger(__name__)

_CGROUP_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(device: str, shard: Shard = ALONE) -> torch.device:
    """`auto`, `cpu` or `cuda`, optionally with an index, as an existing device; each rank has a separate GPU. Raises
    ModelLoadError, and ConfigError where GPUs are fewer than ranks."""
    chosen = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ModelLoadError(
            ModelLoadReason.DEVICE_UNAVAILABLE,
            "there is no CUDA device that torch can use; set device to cpu or auto, or install torch for CUDA",
        )
    if chosen.type == "cuda" and shard.size > 1:
        if torch.cuda.device_count() < shard.size:
            raise ConfigError(
                "tensor_parallel_size",
                f"is {shard.size}, and {torch.cuda.device_count()} GPUs are here",
                "give the pod as many GPUs as ranks, or lower it",
            )
        chosen = torch.device("cuda", shard.rank)
        torch.cuda.set_device(chosen)
    return chosen


def choose_dtype(dtype: str, checkpoint_dtype: str, device: torch.device) -> torch.dtype:
    """The number format of weights, activations and cache. Half-precision checkpoints run in bfloat16 on a CPU with
    native products, in float32 on others. float16 is never used on a CPU: its products are several times slower."""
    if device.type == "cuda":
        return TORCH_DTYPES[checkpoint_dtype if dtype == "auto" else dtype]
    half = torch.bfloat16 if cpu_multiplies_bfloat16() else torch.float32
    if dtype == "float16":
        logger.warning("float16 is slow on a CPU; running in %s instead", str(half).removeprefix("torch."))
        return half
    if dtype == "auto":
        return torch.float32 if checkpoint_dtype == "float32" else half
    return TORCH_DTYPES[dtype]


def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has matrix instructions for bfloat16 (AMX or AVX512-BF16); False if torch cannot tell."""
    if not hasattr(torch.cpu, "get_capabilities"):
        return False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def set_num_threads(num_threads: int | None, num_ranks: int = 1) -> None:
    """Sets the threads of one operation, shared by ranks; None = torch's choice, within a container's CPU limit."""
    chosen = max(1, (num_threads or min(torch.get_num_threads(), _allowed_cores())) // num_ranks)
    if chosen != torch.get_num_threads():
        torch.set_num_threads(chosen)


def _allowed_cores() -> int:
    """Cores for this process: its affinity, and a cgroup's CPU quota rounded up."""
    cores = len(given_cores()) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CGROUP_CPU_LIMIT.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no cgroup v2, or no limit ("max")
        return cores


_CPUS = Path("/sys/devices/system/cpu")
_ENOUGH = 2**16
"""Elements per thread from which torch divides an operation among all threads."""
_bound: dict[int, set[int]] = {}
"""Bound threads and the cores given to each; torch starts its compute threads once per calling thread."""


def pin_threads(pin: bool | None, shard: Shard) -> None:
    """Binds each of torch's threads, the calling one included, to a core; ranks use different cores.

    Call in the thread that runs operations, before the first. None = only where this process may not use every core of
    the machine, as with Kubernetes' static CPU manager. Raises ConfigError where binding is asked for and cores are
    fewer than threads.
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
    """Cores given to the calling thread, before its binding."""
    return _bound.get(threading.get_native_id()) or os.sched_getaffinity(0)


def own_cores(allowed: set[int], cpus: Path = _CPUS) -> list[int]:
    """The logical CPUs in order of use: one of each core first, then their siblings."""
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
    """Torch's other compute threads, started by the first large operation."""
    before = _threads()
    torch.ones(_ENOUGH * num_threads).add_(1)
    return sorted(_threads() - before)


def _threads() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}
