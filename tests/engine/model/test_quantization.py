"""Linear layers of every format against the product with the weight that its integers and scales mean, in float64."""

from collections.abc import Callable

import pytest
import torch

from fairlead_engine.config import QUANTIZATIONS
from fairlead_engine.errors import ModelLoadError
from fairlead_engine.kernels.rounded_rows import decode
from fairlead_engine.model.quantization import fp8, int4_weight_only, int8
from fairlead_engine.model.quantization.dequantized_linear import DequantizedLinear
from fairlead_engine.model.quantization.fp8 import DecodedFp8Linear, Fp8, ScaledFp8Linear
from fairlead_engine.model.quantization.int4_weight_only import PackedInt4Linear, can_pack_int4, can_unpack
from fairlead_engine.model.quantization.int8 import (
    DecodedInt8Linear,
    Int8Linear,
    MixedInt8Linear,
    PackedInt8Linear,
    can_multiply_mixed,
    can_pack_int8,
)
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight, quantize_weight
from fairlead_engine.model.quantization.stored import FORMATS

EPSILON = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8}
"""Between one and the next number."""
ROWS = (0, 1, 4, 5, 33, 230)
ACTIVATION_STEP = {"int8": 1 / 127, "fp8": 2.0**-3}
"""Of formats that round activations: the gap between neighbours over a row's largest number, or over the number."""


def test_the_setting_knows_every_format() -> None:
    assert set(FORMATS) == set(QUANTIZATIONS)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check(linear, x: torch.Tensor, weight: QuantizedWeight, bias: torch.Tensor | None, name: str) -> None:
    """Within what rounding can do: activations to their format, the result and scales to the dtype, sums in float32."""
    found = linear(x)
    assert found.dtype is x.dtype and found.shape == (len(x), len(weight.values))
    meant, exact = weight.dequantized(torch.float64), x.double()
    wanted = exact @ meant.t() + (0 if bias is None else bias.double())
    size = exact.abs() @ meant.abs().t() + (0 if bias is None else bias.double().abs())
    bound = 4 * EPSILON[x.dtype] * size
    if name == "int8":
        rounding = exact.abs().amax(-1, keepdim=True) * ACTIVATION_STEP[name] / 2
        bound += 1.01 * rounding * meant.abs().sum(1)
    elif name == "fp8":
        least = exact.abs().amax(-1, keepdim=True) / 448 * 2.0**-9  # the gap below the normal numbers
        bound += 1.01 * (exact.abs() * ACTIVATION_STEP[name] / 2 + least) @ meant.abs().t()
    assert bool(((found.double() - wanted).abs() <= bound).all())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(80, 96), (192, 64)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_layer_multiplies_with_what_its_integers_mean(name, dtype, shape, with_bias) -> None:
    weight = FORMATS[name].quantize(random(*shape))
    bias = random(shape[0], seed=1).to(dtype) if with_bias else None
    linear = FORMATS[name].linear(weight, bias, dtype)
    for rows in ROWS:
        check(linear, random(rows, shape[1], seed=rows).to(dtype), weight, bias, name)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Int8Linear, "int8"),
        (DecodedInt8Linear, "int8"),
        pytest.param(PackedInt8Linear, "int8", marks=pytest.mark.skipif(not can_pack_int8(), reason="no VNNI")),
        (DequantizedLinear, "int8-weight-only"),
        pytest.param(
            MixedInt8Linear, "int8-weight-only", marks=pytest.mark.skipif(not can_multiply_mixed(), reason="not here")
        ),
        (DequantizedLinear, "int4-weight-only"),
        pytest.param(
            PackedInt4Linear,
            "int4-weight-only",
            marks=pytest.mark.skipif(not can_pack_int4(torch.bfloat16), reason="not here"),
        ),
        (DecodedFp8Linear, "fp8"),
        (ScaledFp8Linear, "fp8"),
    ],
)
def test_every_way_to_a_product_computes_the_same(kind: Callable, name: str) -> None:
    weight, bias = FORMATS[name].quantize(random(64, 128)), random(64, seed=1).bfloat16()
    for rows in (1, 20, 230):
        check(kind(weight, bias, torch.bfloat16), random(rows, 128, seed=rows).bfloat16(), weight, bias, name)


@pytest.mark.parametrize("name", ACTIVATION_STEP)
def test_activations_are_rounded_to_their_format_by_row(name: str) -> None:
    weight, x = FORMATS[name].quantize(random(64, 96)), random(40, 96, seed=1) * random(40, 1, seed=2).exp()
    linear = FORMATS[name].linear(weight, None, torch.float32)
    scales = x.abs().amax(1, keepdim=True) / (127 if name == "int8" else 448)
    rounded = (x / scales).round() if name == "int8" else (x / scales).to(torch.float8_e4m3fn).float()
    wanted = ((rounded * scales).double() @ weight.dequantized(torch.float64).t()).float()
    found = linear(x)
    # Nearly all rows to the last bits: hardly an element is so near the middle that it may go either way.
    same = torch.isclose(found, wanted, rtol=1e-4, atol=1e-4 * float(scales.max()) * 127).all(1)
    assert int(same.sum()) >= 38
    assert int(torch.isclose(linear(x), x @ weight.dequantized().t(), rtol=1e-4, atol=1e-4).all(1).sum()) == 0


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_errs_by_half_a_step_at_most(name: str) -> None:
    weight = random(64, 256)
    found = FORMATS[name].quantize(weight)
    error = (found.dequantized() - weight).abs()
    if name == "fp8":
        least = weight.abs().amax(1, keepdim=True) / 448 * 2.0**-9
        assert bool((error <= weight.abs() * 2.0**-4 + least).all())
        return
    step = found.scales.repeat_interleave(found.group_size, 1)
    assert bool((error <= 0.5001 * step).all())
    assert found.scales.shape == ((64, 8) if name == "int4-weight-only" else (64, 1))


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_of_zeros_stays_one(name: str) -> None:
    weight = random(64, 64)
    weight[3] = 0
    linear = FORMATS[name].linear(FORMATS[name].quantize(weight), None, torch.float32)
    assert bool((linear(random(2, 64))[:, 3] == 0).all())
    assert bool((linear(torch.zeros(2, 64)) == 0).all())


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_number_stays_in_its_row(name: str) -> None:
    linear = FORMATS[name].linear(FORMATS[name].quantize(random(64, 64)), None, torch.float32)
    x = random(3, 64)
    alone = linear(x[:1])
    x[1, 5] = torch.nan
    x[2, 7] = torch.inf
    found = linear(x)
    torch.testing.assert_close(found[:1], alone)
    assert not bool(found[1:].isfinite().any())


def test_every_8_bit_float_is_decoded() -> None:
    codes = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn)
    for dtype in (torch.bfloat16, torch.float32):
        found, wanted = decode(codes, dtype), codes.to(dtype)
        assert torch.equal(found[wanted.isfinite()], wanted[wanted.isfinite()])


def test_a_weight_with_scales_for_blocks_that_do_not_fill_it() -> None:
    """150 columns in blocks of 128."""
    parts = [quantize_weight(random(40, size, seed=size), torch.float8_e4m3fn, largest=448, low=-448, high=448)
             for size in (128, 22)]  # fmt: skip
    values = torch.cat([part.values.view(torch.int8) for part in parts], 1).view(torch.float8_e4m3fn)
    weight = QuantizedWeight(values, torch.cat([part.scales for part in parts], 1), 128)
    for dtype in (torch.float32, torch.bfloat16):
        linear = Fp8().linear(weight, None, dtype)
        for rows in ROWS:
            check(linear, random(rows, 150, seed=rows).to(dtype), weight, None, "fp8")


def test_large_weights_are_decoded_in_parts(monkeypatch) -> None:
    monkeypatch.setattr("fairlead_engine.model.quantization.dequantized_linear.PART_ELEMENTS", 64 * 128)
    monkeypatch.setattr("fairlead_engine.model.quantization.int4_weight_only.PART_ELEMENTS", 64 * 128)
    for name in ("int8-weight-only", "int4-weight-only", "fp8"):
        weight, bias = FORMATS[name].quantize(random(192, 128)), random(192, seed=1)
        check(FORMATS[name].linear(weight, bias, torch.float32), random(230, 128, seed=2), weight, bias, name)


def test_an_output_that_does_not_fit_packing_is_decoded() -> None:
    """9 output features: torch packs 16 together."""
    weight = FORMATS["int4-weight-only"].quantize(random(9, 32))
    linear = FORMATS["int4-weight-only"].linear(weight, None, torch.float32)
    assert isinstance(linear, DequantizedLinear)
    check(linear, random(3, 32), weight, None, "int4-weight-only")


def test_groups_must_divide_the_input() -> None:
    with pytest.raises(ModelLoadError, match="does not divide a layer's 40"):
        FORMATS["int4-weight-only"].quantize(random(16, 40))


@pytest.mark.skipif(not can_pack_int4(torch.float32), reason="not here")
def test_weights_take_what_their_format_says() -> None:
    floats = 4 * 256 * 512
    taken = {
        name: FORMATS[name].linear(FORMATS[name].quantize(random(256, 512)), None, torch.bfloat16).weight_bytes
        for name in FORMATS
    }
    for name, share in (("int8", 1 / 4), ("int8-weight-only", 1 / 4), ("int4-weight-only", 1 / 8), ("fp8", 1 / 4)):
        assert share * floats <= taken[name] <= 1.3 * share * floats, name


def test_a_build_without_the_products_computes_all_the_same(monkeypatch) -> None:
    def unavailable(self, *args) -> None:
        raise RuntimeError("no such operator")

    checks = (can_pack_int8, can_multiply_mixed, can_pack_int4, fp8.can_multiply_fp8)
    for cached in checks:
        cached.cache_clear()
    monkeypatch.setattr(int8.PackedInt8Linear, "__init__", unavailable)
    monkeypatch.setattr(int8.MixedInt8Linear, "__init__", unavailable)
    monkeypatch.setattr(int4_weight_only.PackedInt4Linear, "__init__", unavailable)
    monkeypatch.setattr(fp8.ScaledFp8Linear, "__init__", unavailable)
    try:
        assert not fp8.can_multiply_fp8(torch.device("cpu"))
        for name in FORMATS:
            weight = FORMATS[name].quantize(random(64, 64))
            linear = FORMATS[name].linear(weight, None, torch.bfloat16)
            check(linear, random(3, 64).bfloat16(), weight, None, name)
            assert not isinstance(linear, Int8Linear), "on CPUs it is dozens of times slower than floats"
    finally:
        for cached in checks:
            cached.cache_clear()


@pytest.mark.skipif(not can_unpack(), reason="torch packs otherwise on this CPU")
def test_what_torch_packed_can_be_unpacked() -> None:
    values = torch.randint(-8, 8, (192, 64), generator=torch.Generator().manual_seed(0))
    packed = torch._convert_weight_to_int4pack_for_cpu((values + 8).int(), 1)
    found = int4_weight_only.unpacked(packed, 64).transpose(1, 2).flatten(0, 1)
    assert torch.equal(found, values.to(torch.int8))
