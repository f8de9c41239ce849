"""Root mean square normalisation (arXiv 1910.07467)."""

from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.dispatch import with_kernel


@with_kernel("fairlead_engine.kernels.rms_norm_kernel")
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scales each row of x [..., size] to unit root mean square, then by weight [size]."""
    return functional.rms_norm(x, weight.shape, weight, eps)
