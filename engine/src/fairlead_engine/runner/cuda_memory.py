"""How much memory of a CUDA device is left for a KV cache: read after the largest step, and reckoned."""

from typing import NamedTuple

import torch


class DeviceMemory(NamedTuple):
    """Of one device, in bytes, with the model loaded and no cache."""

    total: int
    free: int
    work_space: int
    """What the largest step took beside, at its peak."""

    def left(self, utilization: float, to_come: int) -> int:
        """For the cache, of the share of the memory that this process and others before it may take together, beside
        the bytes that are still to come."""
        return max(0, int(self.total * utilization) - (self.total - self.free) - self.work_space - to_come)


class CUDAMemory:
    """Watches the current device."""

    def begin(self) -> None:
        """From here on the peak counts."""
        torch.cuda.reset_peak_memory_stats()

    def read(self) -> DeviceMemory:
        """Waits for the device, and gives back what torch keeps in reserve. What libraries have loaded or taken by now
        is in use; so is a small cache that is still there."""
        torch.cuda.synchronize()
        work_space = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return DeviceMemory(total, free, work_space)


def choose_meter(device: torch.device) -> CUDAMemory | None:
    """None for a device whose memory is the machine's."""
    return CUDAMemory() if device.type == "cuda" else None
