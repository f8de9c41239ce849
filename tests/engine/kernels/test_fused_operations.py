"""Fused operations against what they are made of, written out."""

import math

import pytest
import torch

from fairlead_engine.kernels.gates import gelu_mul, silu_mul
from fairlead_engine.kernels.norm_rope_store import HeadNorm, norm_rope
from fairlead_engine.kernels.rms_norm import add_rms_norm, rms_norm
from fairlead_engine.kernels.routes import ExpertRouting, route_top_k


def normalised(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def test_rows_are_scaled_to_unit_root_mean_square_and_weighted():
    x, weight = torch.randn(3, 2, 8), torch.randn(8)
    torch.testing.assert_close(rms_norm(x, weight, 1e-2), normalised(x, weight, 1e-2))


def test_the_sum_is_normalised_and_kept():
    update, stream, weight = torch.randn(5, 8), torch.randn(5, 8), torch.randn(8)
    before = stream.clone()
    found, total = add_rms_norm(update, stream, weight, 1e-5)
    torch.testing.assert_close(total, before + update)
    torch.testing.assert_close(found, normalised(before + update, weight, 1e-5))
    assert torch.equal(stream, before)


def test_the_gate_opens_by_silu():
    gate_up = torch.randn(4, 12)
    gate, up = gate_up[:, :6], gate_up[:, 6:]
    torch.testing.assert_close(silu_mul(gate_up.clone()), gate * gate.sigmoid() * up)


def test_the_gate_opens_by_the_approximate_gelu():
    gate_up = torch.randn(4, 12)
    gate, up = gate_up[:, :6], gate_up[:, 6:]
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    torch.testing.assert_close(gelu_mul(gate_up.clone()), 0.5 * gate * (1 + inner.tanh()) * up)


@pytest.mark.parametrize("with_norm", [False, True])
def test_query_and_key_heads_are_normalised_and_turned_and_values_are_not(with_norm):
    heads = torch.randn(3, 4 + 2 + 2, 6)
    angles = torch.randn(3, 1, 3)
    cosines = torch.cat((angles.cos(), angles.cos()), -1)
    sines = torch.cat((-angles.sin(), angles.sin()), -1)
    norm = HeadNorm(torch.randn(6), torch.randn(6), 1e-3) if with_norm else None
    query, key, value = norm_rope(heads, 2, 2, cosines, sines, norm)
    for found, part, weight in ((query, heads[:, :4], norm and norm.query), (key, heads[:, 4:6], norm and norm.key)):
        plain = part if weight is None else normalised(part, weight, 1e-3)
        turn = torch.polar(torch.ones_like(angles), angles)
        turned = torch.complex(plain[..., :3], plain[..., 3:]) * turn
        torch.testing.assert_close(found, torch.cat((turned.real, turned.imag), -1), rtol=1e-4, atol=1e-5)
    assert torch.equal(value, heads[:, 6:])


def test_the_likeliest_experts_share_what_all_others_leave():
    logits = torch.tensor([[1.0, 3.0, 2.0, -5.0], [0.0, 0.0, -9.0, 4.0]]).bfloat16()
    weights, experts = route_top_k(logits, ExpertRouting(2))
    assert experts.tolist()[0] == [1, 2]
    assert experts.tolist()[1][0] == 3
    assert weights.dtype is torch.float32
    for row, (best, second) in enumerate(experts.tolist()):
        ratio = math.exp(float(logits[row, best] - logits[row, second]))
        assert weights[row].tolist() == pytest.approx([ratio / (1 + ratio), 1 / (1 + ratio)], abs=1e-5)
