"""The gate of a gated feed-forward layer (SwiGLU, arXiv 2002.05202)."""

from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.dispatch import with_kernel


@with_kernel("fairlead_engine.kernels.silu_mul_kernel")
def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up [rows, size], from gate and up side by side [rows, 2 x size]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
