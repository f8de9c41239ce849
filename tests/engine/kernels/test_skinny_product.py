"""The kernel for products of few rows: torch's result, the same for a row in any company, and as code for a GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.kernels.skinny_product import MOST_ROWS, skinny_product
from fairlead_engine.model import product_trial
from fairlead_engine.model.linear import PlainLinear, SkinnyLinear, make_linear
from fairlead_engine_testing.devices import HAS_CUDA, on_each_device
from fairlead_engine_testing.gpu_code import compiled


@on_each_device
@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(0, MOST_ROWS),
    out_features=st.sampled_from([1, 16, 37, 70]),
    in_features=st.sampled_from([1, 17, 64, 256, 700]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_it_is_torchs_product(device, rows, out_features, in_features, dtype, has_bias, seed):
    from fairlead_engine.kernels import skinny_product_kernel

    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(out_features, 2 * in_features, generator=generator).to(device, dtype)
    weight = wide[:, :in_features]  # a rank's part: rows are further apart
    x = torch.randn(rows, in_features, generator=generator).to(device, dtype)
    bias = torch.randn(out_features, generator=generator).to(device, dtype) if has_bias else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skinny_product_kernel, "_MANY_OUTPUTS", 64)
        found = skinny_product_kernel.skinny_product(x, weight, bias)
    assert found.dtype is dtype
    tolerance = 1e-4 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(found, skinny_product(x, weight, bias), rtol=tolerance, atol=tolerance)


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_company_changes_no_bit_of_a_row(device, dtype):
    """In the interpreter a row keeps its place: how numpy sums depends on it, with some processors."""
    from fairlead_engine.kernels.skinny_product_kernel import skinny_product

    x, weight = torch.randn(MOST_ROWS, 300).to(device, dtype), torch.randn(40, 300).to(device, dtype)
    whole = skinny_product(x, weight)
    for rows in (slice(0, 1), slice(3, 5), slice(5, 16)):
        others = torch.randn_like(x)
        others[rows] = x[rows]
        assert skinny_product(others, weight)[rows].equal(whole[rows])
        if device == "cuda":
            assert skinny_product(x[rows], weight).equal(whole[rows])
    x, weight = x.round(), weight.round()  # whose sums are exact in any order
    whole = skinny_product(x, weight)
    for rows in (slice(0, 1), slice(3, 5), slice(5, 16)):
        assert skinny_product(x[rows], weight).equal(whole[rows])
    x[1:] = float("nan")
    assert skinny_product(x, weight)[0].equal(whole[0])


@on_each_device
def test_a_layer_takes_the_kernel_for_few_rows_alone(device):
    weight, bias = torch.randn(24, 32).to(device), torch.randn(24).to(device)
    layer = SkinnyLinear(weight, bias, 4)
    kernel, layer._product = layer._product, lambda x, weight, bias: kernel(x, weight, bias) + 1000.0
    for rows, offset in ((1, 1000.0), (4, 1000.0), (5, 0.0)):
        x = torch.randn(rows, 32).to(device)
        torch.testing.assert_close(layer(x) - offset, PlainLinear(weight, bias)(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("shares", "most"),
    [([0.5, 0.5, 0.5], 16), ([0.5, 0.94, 0.96], 4), ([0.5, 1.2, 0.5], 1), ([0.96, 0.1, 0.1], 0)],
)
def test_it_is_used_for_as_many_rows_as_it_is_clearly_faster_for(shares, most):
    """`shares`: of torch's time, for 1, 4 and 16 rows."""
    weight, times = torch.randn(16, 32), iter([time for share in shares for time in (share, 1.0)])
    assert product_trial.most_rows(torch.nn.functional.linear, weight, lambda run: next(times)) == most


def test_a_kernel_that_errs_or_fails_is_not_used():
    def fails(x, weight):
        raise RuntimeError("no such instruction")

    def wrong(x, weight):
        return torch.nn.functional.linear(x, weight).roll(1, 1)

    def spoilt(x, weight):
        return torch.nn.functional.linear(x, weight) * float("nan")

    times = iter([0.1, 1.0] * 9)
    for product in (fails, wrong, spoilt):
        assert product_trial.most_rows(product, torch.randn(16, 32), lambda run: next(times)) == 0

    def no_memory(run):
        raise torch.OutOfMemoryError("none is left")

    assert product_trial.most_rows(torch.nn.functional.linear, torch.randn(16, 32), no_memory) == 0


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CUDA, reason="there is no CUDA device")
def test_what_is_chosen_on_a_device_is_not_slower():
    weight = torch.randn(4096, 4096, device="cuda").bfloat16()
    most = product_trial.most_skinny_rows(weight)
    assert most == product_trial.most_skinny_rows(weight) and most in (0, 1, 4, 16)
    assert type(make_linear(weight)) is (SkinnyLinear if most else PlainLinear)
    assert product_trial.most_skinny_rows(weight.float()) == product_trial.most_skinny_rows(weight[:, 1:]) == 0


COMPILE = """
from fairlead_engine.kernels import skinny_product_kernel
from fairlead_engine_testing.gpu_code import compile_for_gpu, tell

kernel = skinny_product_kernel
types = dict.fromkeys(("output", "x", "weight", "bias"), "*bf16")
types |= dict.fromkeys(("num_rows", "out_features", "INPUT_SIZE", "x_stride", "weight_stride"), "i32")
found = {}
for outputs, is_even in ((16, True), (16, False), (32, True), (32, False)):
    constants = dict(
        ROWS=16, TILE_OUTPUTS=outputs, TILE_INPUTS=kernel._TILE_INPUTS, WAYS=kernel._NUM_WARPS, IS_EVEN=is_even,
        HAS_BIAS=is_even,
    )
    found[f"{outputs} outputs, {is_even}"] = compile_for_gpu(
        kernel.skinny_product_kernel, types, constants, num_warps=kernel._NUM_WARPS, num_stages=kernel._NUM_STAGES
    )
tell(found)
"""


@pytest.mark.compute
def test_for_a_gpu_it_reads_widely_spills_nothing_and_uses_tensor_cores(tmp_path):
    for name, code in compiled(COMPILE, tmp_path).items():
        assert code.spilled_bytes == 0, (name, code)
        assert code.wide_loads and code.tensor_products, (name, code)
        assert code.shared_bytes <= 75 * 1024, (name, code)  # so that three programs fit a multiprocessor
