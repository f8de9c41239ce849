"""Where, in which number format and with how many threads the model runs: settings against what the machine can do."""

import logging
import math
import os
from pathlib import Path

import torch

from fairlead_engine.errors import ConfigError, ModelLoadError, ModelLoadReason
from fairlead_engine.model.shard import ALONE, Shard
from fairlead_engine.runner.pinning import given_cores

logger = logging.getLogger(__name__)

_CGROUP_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(device: str, shard: Shard = ALONE) -> torch.device:
    """`auto`, `cpu` or `cuda`, optionally with an index, as a device that exists; each rank has a GPU of its own.

    Raises ModelLoadError, and ConfigError where there are fewer GPUs than ranks.
    """
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
    """The number format of weights, activations and cache.

    A CPU that multiplies bfloat16 natively runs half-precision checkpoints in it, any other one in float32. float16 is
    never used on a CPU: products in it are several times slower than in either.
    """
    if device.type == "cuda":
        return _DTYPES[checkpoint_dtype if dtype == "auto" else dtype]
    half = torch.bfloat16 if cpu_multiplies_bfloat16() else torch.float32
    if dtype == "float16":
        logger.warning("float16 is slow on a CPU; running in %s instead", str(half).removeprefix("torch."))
        return half
    if dtype == "auto":
        return torch.float32 if checkpoint_dtype == "float32" else half
    return _DTYPES[dtype]


def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has matrix instructions for bfloat16 (AMX or AVX512-BF16); a torch that cannot tell means no."""
    if not hasattr(torch.cpu, "get_capabilities"):
        return False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def set_num_threads(num_threads: int | None, num_ranks: int = 1) -> None:
    """Sets how many threads one operation uses; None leaves torch's own choice, lowered to a container's CPU limit.
    Ranks share them."""
    chosen = max(1, (num_threads or min(torch.get_num_threads(), _allowed_cores())) // num_ranks)
    if chosen != torch.get_num_threads():
        torch.set_num_threads(chosen)


def _allowed_cores() -> int:
    """Cores this process may run on: what it was given, and a cgroup's CPU quota rounded up."""
    cores = len(given_cores()) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CGROUP_CPU_LIMIT.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no cgroup v2, or no limit ("max")
        return cores
