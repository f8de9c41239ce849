"""Trials of matrix products on this machine; neither versions nor rules prove anything.

A product outside of torch's public interface is tried once for its result. Our own kernel for few rows is timed beside
torch's product, once per shape: the faster one depends on the GPU, the shape and the version of cuBLAS. A kernel that
fails, errs or is not clearly faster is not used.
"""

import logging
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.dispatch import triton_lacks
from fairlead_engine.kernels.skinny_product import MOST_ROWS

logger = logging.getLogger(__name__)


def is_right(product: Callable[[], Tensor], wanted: Tensor, *, otherwise: str) -> bool:
    """Whether a small product equals `wanted` to the bit. Without the product, logs the alternative `otherwise`."""
    try:
        found = product()
    except Exception as error:  # torch's, Triton's compiler's or the driver's
        logger.info("%s: %s", otherwise, error)
        return False
    return found.equal(wanted)


_TRIED_ROWS = (1, 4, MOST_ROWS)
_NUM_RUNS = 9
_CLEARLY = 0.95
"""Share of torch's time below which a kernel is faster beyond chance."""
_LARGEST_ERROR = 0.02
"""Relative to a mean output: half precision rounds each to a 256th, and sums may be taken in any order."""

Product = Callable[[Tensor, Tensor], Tensor]
Timer = Callable[[Callable[[], Tensor]], float]

_known: dict[tuple[str, int, int, torch.dtype, torch.device], int] = {}
"""Results by our product, and a weight's shape, format and device."""


def most_skinny_rows(weight: Tensor) -> int:
    """Most rows for our kernel with weight [out_features, in_features] of 16-bit format on CUDA; 0 = none."""
    is_meant = weight.is_cuda and weight.dtype.itemsize == 2 and weight.stride(1) == 1
    if not is_meant or weight.shape[1] % 16 or weight.stride(0) % 16 or triton_lacks() is not None:
        return 0
    # Triton is needed on CUDA alone.
    from fairlead_engine.kernels.skinny_product_kernel import skinny_product

    return kept_rows("a skinny product", skinny_product, functional.linear, weight, len(weight))


def kept_rows(name: str, product: Product, theirs: Product, weight: Tensor, num_outputs: int) -> int:
    """`most_rows`, found once for such weights [any, in_features]. `name`: of our product, among choices that are
    kept."""
    kind = (name, num_outputs, weight.shape[1], weight.dtype, weight.device)
    if kind not in _known:
        from fairlead_engine.kernels.compile_cache import kept_choices

        kept = kept_choices().choose(
            f"most rows of {name} with {num_outputs} x {weight.shape[1]} {weight.dtype}",
            lambda: most_rows(product, weight, seconds_on_device, theirs),
        )
        _known[kind] = min(kept, MOST_ROWS)
        logger.debug("%s with a weight of %d x %d: our kernel up to %d rows", *kind[:3], _known[kind])
    return _known[kind]


def most_rows(product: Product, weight: Tensor, seconds: Timer, theirs: Product = functional.linear) -> int:
    """The most of `_TRIED_ROWS` up to which `product` is right and clearly faster than torch's; 0 = never."""
    most = 0
    for rows in _TRIED_ROWS:
        x = torch.randn(rows, weight.shape[1], device=weight.device).to(weight.dtype)
        ours, torchs = partial(product, x, weight), partial(theirs, x, weight)
        try:
            is_better = _is_near(ours(), torchs()) and seconds(ours) < _CLEARLY * seconds(torchs)
        except Exception as problem:  # whatever Triton's compiler or the driver makes of this GPU
            logger.info("torch's products instead of our kernel for few rows: %s", problem)
            is_better = False
        if not is_better:
            return most
        most = rows
    return most


def _is_near(found: Tensor, wanted: Tensor) -> bool:
    error = (found.float() - wanted.float()).abs().mean()
    return bool(error <= _LARGEST_ERROR * wanted.float().abs().mean())


def seconds_on_device(run: Callable[[], Tensor]) -> float:
    """The median of a few runs on CUDA, each with nothing of the weight in the device's cache."""
    device = run().device
    num_bytes = 2 * torch.cuda.get_device_properties(device).L2_cache_size
    scratch = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    times: list[float] = []
    for _ in range(_NUM_RUNS):
        scratch.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(1e-3 * start.elapsed_time(end))
    return median(times)
