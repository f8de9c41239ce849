"""Work of a device, counted or played on a CPU: operations of torch, kernels of Triton that are interpreted, and CUDA
graphs.

A capture writes operations down with the tensors that they touch; a replay repeats them on the contents of those
addresses, whoever has written them, without asking Python again. Memory that a graph keeps for itself may hold anything
once the replay is over, and reading a value within a capture is an error.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

FREE = {
    *("empty", "empty_like", "view", "_unsafe_view", "slice", "select", "split", "split_with_sizes", "transpose", "t"),
    *("as_strided", "alias", "reshape", "unsqueeze", "expand", "detach", "chunk", "squeeze", "permute", "flatten"),
}
"""Operations that touch no memory of the device."""
WAITING = {"_local_scalar_dense", "item", "nonzero", "moved", "is_nonzero", "equal", "masked_select", "unique"}
"""Operations for whose result the host waits, or that copy between host and device."""


HOST_READS = {name: getattr(torch.Tensor, name) for name in ("tolist", "numpy", "cpu", "item", "__bool__", "__index__")}
"""Methods that hand values to the host, which no operation of torch tells."""
CAPTURES: list[Callable[[Callable[[], None]], None]] = []
"""Who is to be told of each kernel's launch, as something that repeats it."""


@contextmanager
def host_reads(allowed: bool) -> Iterator[None]:
    """Whether the host may look at tensors meanwhile; where it may not, AssertionError."""

    def refuse(tensor: torch.Tensor, *args: Any) -> Any:
        raise AssertionError("the host looks at a tensor of the device")

    before = {name: getattr(torch.Tensor, name) for name in HOST_READS}
    for name, method in HOST_READS.items():
        setattr(torch.Tensor, name, method if allowed else refuse)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(torch.Tensor, name, method)


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations of torch, and kernels of Triton as one each."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.by_name: Counter[str] = Counter()
        self.specialisations: set[tuple[Any, ...]] = set()
        """Of kernels: each would be compiled on a device."""
        self.runs_kernels = True
        """Whether kernels compute. Where they do not, the first argument of each becomes zeros."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        kwargs = kwargs or {}
        if name == "_to_copy" and kwargs.get("device") is not None:
            name = "moved"
        if name not in FREE:
            self.by_name[name] += 1
        return func(*args, **kwargs)


def specialisation(kernel: Any, name: str, args: tuple[Any, ...], constants: dict[str, Any]) -> tuple[Any, ...]:
    """What Triton compiles a kernel for, and keeps it by: constants, types, and which numbers and addresses are
    multiples of 16, or 1, where the kernel's decorator does not say that it shall not look."""
    parts: list[Any] = []
    for argument, value in zip(kernel.arg_names, args, strict=False):
        is_looked_at = argument not in (kernel.kwargs.get("do_not_specialize") or ())
        if isinstance(value, torch.Tensor):
            is_looked_at = argument not in (kernel.kwargs.get("do_not_specialize_on_alignment") or ())
            parts.append((value.dtype, is_looked_at and value.data_ptr() % 16 == 0))
        elif isinstance(value, int):
            parts.append((value >= 2**31, is_looked_at and (value == 1, value % 16 == 0)))
        else:
            parts.append(type(value))
    return name, *parts, *sorted(constants.items())


class Counted:
    """A kernel whose launches are counted."""

    def __init__(self, kernel: Any, name: str, launches: Launches) -> None:
        self._kernel, self._name, self._launches = kernel, name, launches

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **kwargs: Any) -> None:
            def run() -> None:
                with _disable_current_modes(), host_reads(allowed=True):
                    if self._launches.runs_kernels:
                        self._kernel[grid](*args, **kwargs)
                    else:
                        args[0].zero_()

            self._launches.by_name[self._name] += 1
            self._launches.specialisations.add(specialisation(self._kernel, self._name, args, kwargs))
            run()
            for note in CAPTURES:
                note(run)

        return launch


LOOKS = WAITING | {"bincount", "lift_fresh", "_pin_memory"}
"""Operations that a capture refuses: the host waits for what they tell, or they bring something of the host's."""


class CPUGraphs:
    """Captures for a CPU (`GraphRecorder`)."""

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
