"""Adding to the residual stream and normalising the sum, which a kernel does in one pass over memory."""

from torch import Tensor

from fairlead_engine.kernels.dispatch import with_kernel
from fairlead_engine.kernels.rms_norm import rms_norm


@with_kernel("fairlead_engine.kernels.rms_norm_kernel")
def add_rms_norm(update: Tensor, stream: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised sum of update and stream, each [rows, size], and the sum itself; weight is [size]. The update may
    be in parts [rows, parts, size], which are summed first, one after the other."""
    stream = stream + (update if update.dim() == 2 else update.sum(1))
    return rms_norm(stream, weight, eps), stream
