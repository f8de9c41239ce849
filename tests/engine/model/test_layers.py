"""Linear layers and rotary positions against their definitions."""

import math
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from fairlead_common.models.rope_config import RopeConfig
from fairlead_engine.kernels.norm_rope_store import norm_rope
from fairlead_engine.model import linear
from fairlead_engine.model.linear import PackedLinear, PlainLinear, can_pack, make_linear
from fairlead_engine.model.rope import RotaryEmbedding

CPU = torch.device("cpu")


def rotate(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """As queries are, beside a key and a value head that nobody looks at."""
    both = torch.cat((heads, heads[:, :2]), dim=1)
    return norm_rope(both, 1, 1, cosines, sines, None)[0]


MANY_SHAPES = """
import ctypes, torch
from fairlead_engine.model.linear import make_linear

class Heap(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL("libc.so.6")
libc.mallinfo2.restype = Heap
linears = [make_linear(torch.zeros(rows, 512)) for rows in (512, 768, 1536)]
for rows in range(1, 401):
    for linear in linears:
        linear(torch.zeros(rows, 512))
    if rows in (100, 400):
        print(libc.mallinfo2().uordblks)
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 7, 64])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_linear_layer_multiplies_and_adds(dtype, rows, with_bias):
    x, weight = torch.randn(rows, 48).to(dtype), torch.randn(80, 48).to(dtype)
    bias = torch.randn(80).to(dtype) if with_bias else None
    found = make_linear(weight, bias)(x)
    assert found.dtype is dtype
    torch.testing.assert_close(found, functional.linear(x, weight, bias), rtol=2e-2, atol=5e-2)


def test_a_build_without_packing_falls_back_to_plain_products(monkeypatch):
    def unavailable(self, weight, bias=None):
        raise RuntimeError("no such operator")

    monkeypatch.setattr(PackedLinear, "__init__", unavailable)
    can_pack.cache_clear()
    try:
        assert isinstance(linear.make_linear(torch.ones(2, 2)), PlainLinear)
    finally:
        can_pack.cache_clear()


@pytest.mark.compute
@pytest.mark.skipif(not can_pack(torch.float32), reason="this build of torch has no packed products")
def test_prompts_of_all_lengths_do_not_fill_the_memory() -> None:
    """In a process of its own, since what is kept is bounded when the first product is computed."""
    run = subprocess.run([sys.executable, "-c", MANY_SHAPES], capture_output=True, text=True, check=True, timeout=120)
    early, late = map(int, run.stdout.split())
    assert late - early < 20 * 2**20


def test_rotation_turns_pairs_of_elements_by_their_position():
    heads, positions = torch.randn(3, 2, 8), torch.tensor([0, 5, 1000])
    cosines, sines = RotaryEmbedding(RopeConfig(theta=100.0), 8, CPU)(positions, torch.float32)
    found = rotate(heads, cosines, sines)
    for token, position in enumerate(positions.tolist()):
        for pair in range(4):
            angle = position * 100.0 ** (-2 * pair / 8)
            turned = torch.view_as_complex(torch.stack((heads[token, :, pair], heads[token, :, pair + 4]), -1))
            turned = turned * complex(math.cos(angle), math.sin(angle))
            torch.testing.assert_close(found[token, :, pair], turned.real, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(found[token, :, pair + 4], turned.imag, rtol=1e-3, atol=1e-3)
