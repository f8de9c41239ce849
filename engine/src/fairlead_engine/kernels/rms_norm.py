"""Root mean square normalisation (arXiv 1910.07467), alone or after adding to the residual stream."""

from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.dispatch import with_kernel


@with_kernel("fairlead_engine.kernels.rms_norm_kernel")
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scales each row of x [..., size] to unit root mean square, then by weight [size]."""
    return functional.rms_norm(x, weight.shape, weight, eps)


@with_kernel("fairlead_engine.kernels.rms_norm_kernel")
def add_rms_norm(update: Tensor, stream: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised sum of update and stream, each [rows, size], and the sum itself; weight is [size]. The update may
    be in parts [rows, parts, size], summed first, in order."""
    stream = stream + (update if update.dim() == 2 else update.sum(1))
    return rms_norm(stream, weight, eps), stream
