"""Capturing on CUDA, and whether it can be done here. Nothing of it runs on another device."""

import logging
from collections.abc import Callable
from typing import Any

import torch

from fairlead_engine.kernels.attention.backend import AttentionBackend, CapturableBackend
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.fallback.foreign_decoder import ForeignDecoder
from fairlead_engine.runner.step_graphs import Recorder, Replay

logger = logging.getLogger(__name__)


class CUDAGraphs:
    """Graphs that share one pool of memory and one stream to be captured on; they are repeated on the current one."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._free_before: int | None = None

    def record(self, run: Callable[[], None]) -> Replay:
        """Runs it once on the stream that it is captured on, which has libraries choose and load their kernels there,
        and NCCL find its peers; none of that may happen within a capture."""
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
        """As the driver tells it: graphs take memory outside of torch's pool too."""
        return 0 if self._free_before is None else max(0, self._free_before - torch.cuda.mem_get_info()[0])


def choose_recorder(
    device: torch.device, model: Decoder | ForeignDecoder, backend: AttentionBackend[Any, Any], *, enforce_eager: bool
) -> Recorder | None:
    """What captures this model's steps; None = they are launched operation by operation."""
    if device.type != "cuda" or enforce_eager:
        return None
    if not isinstance(backend, CapturableBackend) or backend.pads_contexts:
        logger.warning("steps are not captured as CUDA graphs: of the attention backends only triton suits them")
        return None
    if model.why_not_captured is not None:
        logger.warning("steps are not captured as CUDA graphs: %s", model.why_not_captured)
        return None
    return CUDAGraphs()
