"""Products with the experts that rows go to: what each expert alone gives, by torch and kernel; good code for a GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.kernels.expert_product import expert_product, pair_up
from fairlead_engine_testing.gpu_code import compiled

HAS_CUDA = torch.cuda.is_available()
on_each_device = pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.skipif(HAS_CUDA, reason="Triton compiles for CUDA where there is one")),
        pytest.param(
            "cuda", marks=(pytest.mark.gpu, pytest.mark.skipif(not HAS_CUDA, reason="there is no CUDA device"))
        ),
    ],
)


def product_of_each(x, weights, experts):
    """Pair by pair: experts [rows, each row's]."""
    pairs = [(row, expert) for row, chosen in enumerate(experts.tolist()) for expert in chosen]
    found = [torch.nn.functional.linear(x[row : row + 1], weights[expert]) for row, expert in pairs]
    return torch.cat(found) if found else x.new_empty(0, weights.shape[1])


def chosen_experts(num_rows, num_experts, each, generator):
    """As a router chooses them: each row's differ."""
    return torch.rand(num_rows, num_experts, generator=generator).topk(each).indices


def test_pairs_are_put_in_the_order_of_their_experts():
    pairs = pair_up(torch.tensor([[2, 0], [2, 3], [0, 2]]), 5)
    assert pairs.order.tolist() == [1, 4, 0, 2, 5, 3]
    assert pairs.ends.tolist() == [2, 2, 5, 6, 6]


@on_each_device
@settings(max_examples=25)
@given(
    num_rows=st.sampled_from([0, 1, 2, 5, 40]),
    num_experts=st.sampled_from([1, 4, 7]),
    each=st.integers(1, 3),
    out_features=st.sampled_from([1, 48, 70]),
    in_features=st.sampled_from([8, 64, 130]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    is_large=st.booleans(),
    seed=st.integers(0, 99),
)
def test_both_give_what_each_expert_alone_gives(
    device, num_rows, num_experts, each, out_features, in_features, dtype, is_large, seed
):
    from fairlead_engine.kernels import expert_product_kernel

    generator = torch.Generator().manual_seed(seed)
    experts = chosen_experts(num_rows, num_experts, min(each, num_experts), generator)
    x = torch.randn(num_rows, in_features, generator=generator).to(device, dtype)
    weights = torch.randn(num_experts, out_features, in_features, generator=generator).to(device, dtype)
    expected, pairs = product_of_each(x, weights, experts), pair_up(experts.to(device), num_experts)
    tolerance = 1e-4 if dtype is torch.float32 else 2e-2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expert_product_kernel, "_MANY_PAIRS", 0 if is_large else 10**6)
        found = expert_product_kernel.expert_product(x, weights, pairs)
    for product in (found, expert_product.__wrapped__(x, weights, pairs)):
        assert product.dtype is dtype
        torch.testing.assert_close(product, expected, rtol=tolerance, atol=tolerance)


@on_each_device
def test_a_row_of_each_pair_and_company_that_changes_no_bit_of_it(device):
    """As the second product has it, of what the first gave. In the interpreter a row keeps its place: how numpy sums
    depends on it, with some processors."""
    from fairlead_engine.kernels.expert_product_kernel import expert_product

    experts = chosen_experts(9, 4, 2, torch.Generator().manual_seed(0))
    x, weights = torch.randn(18, 32, device=device), torch.randn(4, 40, 32, device=device)
    whole = expert_product(x, weights, pair_up(experts.to(device), 4))
    torch.testing.assert_close(whole, product_of_each(x, weights, experts.view(18, 1)), rtol=1e-4, atol=1e-4)
    for rows in (slice(0, 2), slice(8, 18)):
        others = torch.randn_like(x)
        others[rows] = x[rows]
        assert expert_product(others, weights, pair_up(experts.to(device), 4))[rows].equal(whole[rows])
        chosen = pair_up(experts.view(-1)[rows].view(-1, 2).to(device), 4)
        if device == "cuda":
            assert expert_product(x[rows], weights, chosen).equal(whole[rows])
        exact = expert_product(x.round(), weights.round(), pair_up(experts.to(device), 4))  # sums in any order are
        assert expert_product(x[rows].round(), weights.round(), chosen).equal(exact[rows])


COMPILE = """
from fairlead_engine.kernels import expert_product_kernel as kernel
from fairlead_engine_testing.gpu_code import compile_for_gpu, tell

types = dict.fromkeys(("output", "x", "weights"), "*bf16") | dict.fromkeys(("order", "ends"), "*i64")
types |= dict.fromkeys(("out_features", "INPUT_SIZE", "x_stride", "weight_stride"), "i32")
found = {}
for rows, experts, each in ((kernel._FEW_ROWS, 128, 8), (kernel._MANY_ROWS, 8, 2), (kernel._FEW_ROWS, 60, 1)):
    constants = dict(
        PAIRS_PER_ROW=each, NUM_EXPERTS=experts, PADDED_EXPERTS=2 ** (experts - 1).bit_length(), TILE_ROWS=rows,
        TILE_OUTPUTS=kernel._TILE_OUTPUTS, TILE_INPUTS=kernel._TILE_INPUTS, IS_EVEN=each != 1,
    )
    found[f"{rows} rows, {experts} experts"] = compile_for_gpu(
        kernel.expert_product_kernel, types, constants, num_warps=kernel._NUM_WARPS, num_stages=kernel._NUM_STAGES
    )
tell(found)
"""


def test_for_a_gpu_it_reads_widely_spills_nothing_and_uses_tensor_cores(tmp_path):
    for name, code in compiled(COMPILE, tmp_path).items():
        assert code.spilled_bytes == 0, (name, code)
        assert code.wide_loads and code.tensor_products, (name, code)
        assert code.shared_bytes <= 75 * 1024, (name, code)  # so that three programs fit a multiprocessor
