"""What a step computed, on its way from the device to the host."""

import torch
from torch import Tensor


class Readback:
    """Tensors of one step that the host will read. They are copied when the device has come to them, which nobody waits
    for but who calls `wait`: what was launched after them goes on meanwhile."""

    def __init__(self) -> None:
        self._event: torch.cuda.Event | None = None

    def __call__(self, tensor: Tensor) -> Tensor:
        """The tensor on the host; it holds nothing before `wait`."""
        if not tensor.is_cuda:
            return tensor
        on_host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        on_host.copy_(tensor, non_blocking=True)
        self._event = self._event or torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record()
        return on_host

    def is_over(self) -> bool:
        """Whether all of them are there."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Until all of them are there."""
        if self._event is not None:
            self._event.synchronize()
