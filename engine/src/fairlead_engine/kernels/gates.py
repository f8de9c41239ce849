"""The gates of gated feed-forward layers (arXiv 2002.05202)."""

from typing import NamedTuple

import torch
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
    """GeGLU: gelu(gate) * up, with the tanh approximation, in the same shapes."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh").mul_(up)


def scaled_silu_mul(gate_up: Tensor, factor: float) -> Tensor:
    """SwiGLU with a factor of gates: silu(factor * gate) * up, in the shapes of `silu_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate * factor).mul_(up)


def squared_relu(up: Tensor) -> Tensor:
    """relu(up)² [rows, size] (arXiv 2109.08668)."""
    return functional.relu(up).square_()


@with_kernel("fairlead_engine.kernels.gates_kernel")
def xielu(up: Tensor, *, above: float, below: float, slope: float, limit: float) -> Tensor:
    """xIELU [rows, size] (arXiv 2411.13010), computed in float32: above * x² + slope * x for x above 0, and
    below * (exp(x) - 1 - x) + slope * x for others, whose exponents are `limit` at most."""
    x = up.float()
    curved = torch.where(x > 0, above * x * x, (torch.expm1(x.clamp(max=limit)) - x).mul_(below))
    return curved.add_(x, alpha=slope).to(up.dtype)


def clamped_swiglu(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    """gpt-oss's: gate * sigmoid(alpha * gate) * (up + 1) [rows, size], both within `limit`, the gate only from above.
    Gate and up alternate in [rows, 2 x size], gate first."""
    gate, up = gate_up[:, ::2].clamp(max=limit), gate_up[:, 1::2].clamp(-limit, limit)
    return torch.sigmoid(alpha * gate).mul_(gate).mul_(up.add_(1.0))


class Gate(NamedTuple):
    """The gate that a kernel may apply within its product: `silu_mul`, `gelu_mul` or `clamped_swiglu`."""

    alpha: float = 1.0
    limit: float | None = None
    """None = no limit, with gate and up side by side; else they alternate."""
    is_gelu: bool = False
    """Without a limit: `gelu_mul`."""

    def __call__(self, gate_up: Tensor) -> Tensor:
        if self.is_gelu:
            return gelu_mul(gate_up)
        return silu_mul(gate_up) if self.limit is None else clamped_swiglu(gate_up, self.alpha, self.limit)


SILU, GELU = Gate(), Gate(is_gelu=True)
