"""Linear layers and rotary positions against their definitions."""

import math

import pytest
import torch
from torch.nn import functional

from fairlead_engine.model import linear
from fairlead_engine.model.linear import PackedLinear, PlainLinear, can_pack, make_linear
from fairlead_engine.model.rope import RopeConfig, RopeKind, RotaryEmbedding, inverse_frequencies, rotate

CPU = torch.device("cpu")
LLAMA3 = RopeConfig(
    theta=10000.0,
    kind=RopeKind.LLAMA3,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=128,
)


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


def test_plain_frequencies_follow_the_definition():
    found = inverse_frequencies(RopeConfig(theta=500.0), 8)
    assert found.tolist() == pytest.approx([500.0 ** (-2 * i / 8) for i in range(4)])


def test_linear_scaling_divides_every_frequency():
    plain, scaled = RopeConfig(theta=100.0), RopeConfig(theta=100.0, kind=RopeKind.LINEAR, factor=4.0)
    torch.testing.assert_close(inverse_frequencies(scaled, 16), inverse_frequencies(plain, 16) / 4)


def test_llama3_scaling_stretches_long_wavelengths_only():
    plain, scaled = inverse_frequencies(RopeConfig(theta=10000.0), 64), inverse_frequencies(LLAMA3, 64)
    wavelengths = 2 * math.pi / plain
    short, long = wavelengths < 128 / 4, wavelengths > 128
    between = ~short & ~long
    assert short.any() and long.any() and between.any()
    torch.testing.assert_close(scaled[short], plain[short])
    torch.testing.assert_close(scaled[long], plain[long] / 8)
    assert bool((scaled[between] < plain[between]).all()) and bool((scaled[between] > plain[between] / 8).all())


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


def test_rotated_products_depend_on_the_distance_alone():
    query, key = torch.randn(2, 1, 1, 16)
    rotary = RotaryEmbedding(RopeConfig(theta=100.0), 16, CPU)

    def product(query_position: int, key_position: int) -> float:
        turned_query = rotate(query, *rotary(torch.tensor([query_position]), torch.float32))
        turned_key = rotate(key, *rotary(torch.tensor([key_position]), torch.float32))
        return float((turned_query * turned_key).sum())

    assert product(7, 3) == pytest.approx(product(104, 100), abs=1e-4)
