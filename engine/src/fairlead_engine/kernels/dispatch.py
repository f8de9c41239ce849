"""Chooses the implementation of a fused operation: the kernel for tensors on CUDA, if Triton works here, else torch.

Both lie beside each other, `NAME.py` in plain torch and `NAME_kernel.py` in Triton, each with a function of the same
name and signature. A kernel's module is imported with the first tensor on CUDA. Attention's kernels are chosen with its
backend.
"""

import os
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from shutil import which
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def triton_lacks() -> str | None:
    """Why Triton cannot run kernels here, as a clause; None = it can. Triton compiles a module of its driver at first
    use with a C compiler, searched for in the same way here."""
    if find_spec("triton") is None:
        return "Triton is not installed: pip install 'fairlead-engine[cuda]'"
    if not (os.environ.get("CC") or which("gcc") or which("clang")):
        return "Triton finds no C compiler: install gcc, or name one in CC"
    return None


def has_kernels(tensor: "Tensor") -> bool:
    """Whether kernels can compute with this tensor."""
    return tensor.is_cuda and triton_lacks() is None


def with_kernel(module: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Calls the function of the same name in `module` instead where the first argument is on CUDA."""

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @cache
        def kernel() -> Callable[Arguments, Result]:
            return getattr(import_module(module), function.__name__) if triton_lacks() is None else function

        @wraps(function)
        def dispatched(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            return (kernel() if args[0].is_cuda else function)(*args, **kwargs)  # type: ignore[attr-defined]

        return dispatched

    return decorate
