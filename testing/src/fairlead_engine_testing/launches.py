"""What is asked of a device, counted on a CPU: operations of torch, and kernels of Triton that are interpreted."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

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
