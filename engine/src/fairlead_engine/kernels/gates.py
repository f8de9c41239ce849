"""The gates of gated feed-forward layers (arXiv 2002.05202)."""

from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.dispatch import with_kernel


@with_kernel("fairlead_engine.kernels.gates_kernel")
def silu_mul(gate_up: Tensor) -> Tensor:
    """SwiGLU: silu(gate) * up [rows, size], from gate and up side by side [rows, 2 x size]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


@with_kernel("fairlead_engine.kernels.gates_kernel")
def gelu_mul(gate_up: Tensor) -> Tensor:
    """GeGLU: gelu(gate) * up, with the tanh that approximates it, in the same shapes."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh").mul_(up)
