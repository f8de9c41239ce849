"""CUDA graphs played on a CPU: operations are written down with the tensors that they touch, and repeated on those.

What holds of a graph holds of it: it reads what lies at its addresses, whoever has put it there; Python is not asked
again; what it keeps for itself may be anything as soon as it is over; and a look at a value within it is an error.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from fairlead_engine_testing.launches import CAPTURES, WAITING, host_reads

LOOKS = WAITING | {"bincount", "lift_fresh", "_pin_memory"}
"""Operations that a capture refuses: the host waits for what they tell, or they bring something of the host's."""


class CPUGraphs:
    """Captures for a CPU (`Recorder`)."""

    def __init__(self) -> None:
        self.num_replays = 0
        self.num_captured = 0

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        run()
        capture = _Capture()
        CAPTURES.append(capture.operations.append)
        try:
            with host_reads(allowed=False), capture:
                run()
        finally:
            CAPTURES.pop()
        capture.spoil()
        self.num_captured += 1

        def replay() -> None:
            self.num_replays += 1
            with torch.inference_mode(), _disable_current_modes():
                capture.repeat()

        return replay

    def num_bytes(self) -> int:
        return 0


class _Capture(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes operations down while they are carried out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Callable[[], None]] = []
        self._own: dict[int, Tensor] = {}
        """By address: the memory that was taken since the beginning."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.name.split("::")[1] in LOOKS:
            raise AssertionError(f"{func}: the host looks at a tensor of the device")
        results = func(*args, **kwargs)
        given = {_address(each) for each in tree_leaves((args, kwargs)) if _has_address(each)}
        made = [each for each in tree_leaves(results) if _has_address(each)]
        new = [each for each in made if _address(each) not in given]
        for each in new:
            self._own[_address(each)] = each
        if func._schema.is_mutable or func.namespace == "c10d" or new or not made:  # sums of ranks do not say so
            self.operations.append(lambda: self._carry_out(func, args, kwargs, made, new))
        return results

    def repeat(self) -> None:
        for operation in self.operations:
            operation()
        self.spoil()

    def spoil(self) -> None:
        """Whoever reads what this has kept reads nonsense, or beyond all bounds."""
        for tensor in self._own.values():
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
            else:
                tensor.fill_(True if tensor.dtype is torch.bool else torch.iinfo(tensor.dtype).max // 2)

    def _carry_out(self, func: Any, args: Any, kwargs: Any, made: list[Tensor], new: list[Tensor]) -> None:
        results = func(*args, **kwargs)
        for before, now in zip(made, (each for each in tree_leaves(results) if _has_address(each)), strict=True):
            if any(before is each for each in new):
                before.copy_(now)
        for work in tree_leaves(results):
            if hasattr(work, "wait") and not isinstance(work, Tensor):  # a sum over ranks
                work.wait()


def _has_address(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and value.numel() > 0


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
