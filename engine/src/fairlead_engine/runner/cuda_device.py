"""What is done on CUDA alone: capturing steps, reading how much memory is left, and copying results to the host."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairlead_engine.kernels.attention.backend import AttentionBackend, CapturableBackend
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.fallback.foreign_decoder import ForeignDecoder
from fairlead_engine.runner.step_graphs import GraphRecorder, Replay


class Readback:
    """Tensors of one step for the host. Copies are queued; only `wait` waits, and later launches go on meanwhile."""

    def __init__(self) -> None:
        self._event: torch.cuda.Event | None = None

    def __call__(self, tensor: Tensor) -> Tensor:
        """The tensor on the host; undefined before `wait`."""
        if not tensor.is_cuda:
            return tensor
        on_host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        on_host.copy_(tensor, non_blocking=True)
        self._event = self._event or torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record()
        return on_host

    def is_over(self) -> bool:
        """Whether all copies are done."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Waits for all copies."""
        if self._event is not None:
            self._event.synchronize()


logger = logging.getLogger(__name__)


class CUDAGraphs:
    """Graphs with one memory pool and one capture stream, replayed on the current stream."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._free_before: int | None = None

    def record(self, run: Callable[[], None]) -> Replay:
        """Runs `run` before capturing it: libraries load kernels and NCCL finds its peers, forbidden in a capture."""
        if self._free_before is None:
            self._free_before = torch.cuda.mem_get_info()[0]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as NCCL's watchdog, may ask the driver something meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        return graph.replay

    def num_bytes(self) -> int:
        """By the driver, as graphs take memory outside of torch's pool too."""
        return 0 if self._free_before is None else max(0, self._free_before - torch.cuda.mem_get_info()[0])


class DeviceMemory(NamedTuple):
    """Bytes of one device, with the model loaded and no cache."""

    total: int
    free: int
    work_space: int
    """Peak of the largest step."""

    def left(self, utilization: float, to_come: int) -> int:
        """Bytes for the cache: the share of memory for this process and earlier ones together, less `to_come`."""
        return max(0, int(self.total * utilization) - (self.total - self.free) - self.work_space - to_come)


class CUDAMemory:
    """Watches the current device."""

    def begin(self) -> None:
        """Restarts the peak."""
        torch.cuda.reset_peak_memory_stats()

    def read(self) -> DeviceMemory:
        """Waits for the device, and frees torch's reserve. Counts loaded libraries and a small cache as in use."""
        torch.cuda.synchronize()
        work_space = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return DeviceMemory(total, free, work_space)


def choose_meter(device: torch.device) -> CUDAMemory | None:
    """None = the device's memory is the machine's."""
    return CUDAMemory() if device.type == "cuda" else None


def choose_recorder(
    device: torch.device, model: Decoder | ForeignDecoder, backend: AttentionBackend[Any, Any], *, enforce_eager: bool
) -> GraphRecorder | None:
    """What captures this model's steps; None = steps are launched operation by operation."""
    if device.type != "cuda" or enforce_eager:
        return None
    if not isinstance(backend, CapturableBackend) or backend.pads_contexts:
        logger.warning("steps are not captured as CUDA graphs: of the attention backends only triton suits them")
        return None
    if model.why_not_captured is not None:
        logger.warning("steps are not captured as CUDA graphs: %s", model.why_not_captured)
        return None
    return CUDAGraphs()
