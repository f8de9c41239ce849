"""Who goes where: what the model's router says, by torch and kernel, whatever numbers it gives; code for a GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.kernels.routes import ExpertRouting, find_routes, route_top_k, shares
from fairlead_engine_testing.devices import on_each_device
from fairlead_engine_testing.gpu_code import compiled

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, of NaN


def both(logits, routing, x, device):
    from fairlead_engine.kernels import routes_kernel

    on_device = routing._replace(bias=None if routing.bias is None else routing.bias.to(device))
    given_tensors = logits.to(device), on_device, x.to(device), True
    return routes_kernel.find_routes(*given_tensors), find_routes.__wrapped__(*given_tensors)


@pytest.mark.compute
@on_each_device
@settings(max_examples=25)
@given(
    num_tokens=st.sampled_from([1, 2, 17, 70]),
    shape=st.sampled_from([(1, 1, 1), (5, 1, 1), (8, 4, 2), (12, 4, 3), (6, 6, 4), (64, 8, 3)]),
    each=st.integers(1, 4),
    has_bias=st.booleans(),
    is_softmax=st.booleans(),
    normalised=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    seed=st.integers(0, 99),
)
def test_both_find_who_goes_where(device, num_tokens, shape, each, has_bias, is_softmax, normalised, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    num_experts, num_groups, num_chosen_groups = shape
    bias = torch.randn(num_experts, generator=generator) if has_bias else None
    each = min(each, num_experts // num_groups * num_chosen_groups)
    routing = ExpertRouting(each, normalised, num_groups, num_chosen_groups, 1.5, bias, is_softmax)
    # No two are as good as each other: who then goes first is nobody's matter.
    orders = torch.rand(num_tokens, num_experts, generator=generator).argsort(1)
    logits, x = (orders / 8 - 2).to(dtype), torch.randn(num_tokens, 33, generator=generator)
    weights, experts = route_top_k(logits, routing)
    for found in both(logits, routing, x, device):
        assert found.experts.tolist() == experts.tolist()
        torch.testing.assert_close(shares(found.scores.cpu(), routing), weights)
        for expert, (order, count) in enumerate(zip(found.order.tolist(), found.counts.tolist(), strict=True)):
            pairs = [pair for pair, chosen in enumerate(experts.flatten().tolist()) if chosen == expert]
            assert order[:count] == pairs
        if found.largest is not None:
            assert found.largest.cpu().equal(x.abs().amax(1)) and not found.largest_within.any()


@on_each_device
def test_a_token_has_as_many_experts_as_it_should_whatever_its_logits_are(device):
    """Or it would push others out of the tiles that there are."""
    logits = torch.randn(6, 8)
    logits[1], logits[2, 3], logits[3], logits[4, :4] = float("nan"), float("nan"), 0.0, float("inf")
    logits[5] = float("-inf")
    for bias in (None, torch.randn(8)):
        routing = ExpertRouting(2, bias=bias, num_groups=4, num_chosen_groups=2)
        for found in both(logits, routing, torch.randn(6, 4), device)[: 1 if bias is None else 2]:
            assert int(found.counts.sum()) == 12
            assert sorted(pair for row, num in zip(found.order, found.counts, strict=True) for pair in row[:num]) == [
                *range(12)
            ]
            assert bool(((found.experts >= 0) & (found.experts < 8)).all())
            assert len({*found.experts[0].tolist()}) == 2
            assert not bool(found.scores[1].isfinite().any())


COMPILE = """
from fairlead_engine.kernels import routes_kernel as kernel
from fairlead_engine_testing.gpu_code import compile_for_gpu, tell

types = dict.fromkeys(("logits", "x"), "*bf16") | dict.fromkeys(("experts", "order", "counts"), "*i32")
types |= dict.fromkeys(("scores", "largest", "largest_within", "bias"), "*fp32")
types |= dict.fromkeys(("num_tokens", "logits_stride", "x_stride", "ROW_SIZE"), "i32")
found = {}
for experts, groups, has_bias, is_softmax, tokens in (
    (128, 1, False, True, 16), (128, 1, False, True, 64), (256, 8, True, False, 32), (128, 1, True, True, 64),
):
    constants = dict(
        EACH=8, NUM_EXPERTS=experts, PADDED_EXPERTS=experts, NUM_GROUPS=groups, PADDED_GROUPS=groups,
        NUM_CHOSEN_GROUPS=min(4, groups), NUM_COUNTED=1 + has_bias, HAS_BIAS=has_bias,
        IS_SOFTMAX=is_softmax, ROUNDS=True, TILE_TOKENS=tokens, TILE_COLUMNS=kernel._TILE_COLUMNS,
    )
    num_warps = kernel.FEW_WARPS if tokens == kernel._FEW_TOKENS else kernel.MANY_WARPS
    name = f"{experts} experts, {tokens}, {has_bias}"
    found[name] = compile_for_gpu(kernel.routes_kernel, types, constants, num_warps=num_warps)
tell(found)
"""


@pytest.mark.compute
def test_for_a_gpu_it_reads_widely_and_spills_nothing(tmp_path):
    for name, code in compiled(COMPILE, tmp_path).items():
        assert code.spilled_bytes == 0, (name, code)
        assert code.wide_loads, (name, code)
