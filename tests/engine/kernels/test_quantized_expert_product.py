"""Products with quantised experts: what each expert alone gives, by torch and kernel; good code for a GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.kernels.expert_product import pair_up
from fairlead_engine.kernels.quantized_expert_product import ExpertIntegers, quantized_expert_product
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


def integers(num_experts, out_features, in_features, group_size, *, is_float, has_offsets, in_any_order, generator):
    num_groups = -(-in_features // group_size)
    shape = num_experts, out_features, num_groups
    values = torch.randint(-8, 8, (num_experts, out_features, in_features), generator=generator)
    return ExpertIntegers(
        values.to(torch.float8_e4m3fn if is_float else torch.int8),
        0.1 + torch.rand(shape, generator=generator),
        group_size,
        torch.randn(shape, generator=generator) if has_offsets else None,
        torch.randint(num_groups, (num_experts, in_features), generator=generator) if in_any_order else None,
    )


def meant(weights):
    """float64, element by element."""
    values = weights.values.double()
    groups = torch.arange(values.shape[2]) // weights.group_size
    for expert, value in enumerate(values):
        columns = groups if weights.groups is None else weights.groups[expert]
        value *= weights.scales[expert][:, columns]
        if weights.offsets is not None:
            value += weights.offsets[expert][:, columns]
    return values


@on_each_device
@settings(max_examples=60)
@given(
    num_rows=st.sampled_from([0, 1, 2, 5, 40]),
    num_experts=st.sampled_from([1, 4, 7]),
    each=st.integers(1, 3),
    out_features=st.sampled_from([1, 48, 70]),
    sizes=st.sampled_from([(8, 8), (64, 64), (130, 130), (96, 32), (130, 16), (160, 64), (70, 12), (256, 128)]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    is_float=st.booleans(),
    has_row_scales=st.booleans(),
    has_offsets=st.booleans(),
    in_any_order=st.booleans(),
    is_large=st.booleans(),
    seed=st.integers(0, 99),
)
def test_both_give_what_each_expert_alone_gives(
    device, num_rows, num_experts, each, out_features, sizes, dtype, is_float, has_row_scales, has_offsets,
    in_any_order, is_large, seed,
):  # fmt: skip
    from fairlead_engine.kernels import quantized_expert_product_kernel as kernel

    generator = torch.Generator().manual_seed(seed)
    each, (in_features, group_size) = min(each, num_experts), sizes
    weights = integers(
        num_experts, out_features, in_features, group_size, is_float=is_float, has_offsets=has_offsets,
        in_any_order=in_any_order, generator=generator,
    )  # fmt: skip
    experts = torch.rand(num_rows, num_experts, generator=generator).topk(each).indices
    x, x_scales = torch.randn(num_rows, in_features, generator=generator).to(dtype), None
    if has_row_scales:
        x = (4 * x).to(weights.values.dtype)
        x_scales = torch.rand(num_rows, 1, generator=generator)
    rows = x.double() if x_scales is None else x.double() * x_scales
    exact = torch.einsum("pi,poi->po", rows.repeat_interleave(each, 0), meant(weights)[experts.flatten()])
    size = torch.einsum("pi,poi->po", rows.abs().repeat_interleave(each, 0), meant(weights).abs()[experts.flatten()])
    there = ExpertIntegers(*(part.to(device) if isinstance(part, torch.Tensor) else part for part in weights))
    given_rows = x.to(device), None if x_scales is None else x_scales.to(device), there
    pairs = pair_up(experts.to(device), num_experts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_MANY_PAIRS", 0 if is_large else 10**6)
        found = kernel.quantized_expert_product(*given_rows, pairs, dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-3
    for product in (found, quantized_expert_product.__wrapped__(*given_rows, pairs, dtype)):
        assert product.dtype is dtype
        # Offsets take away most of what is summed, so an error is one of what was summed.
        bound = tolerance * (size + rows.abs().sum(1).repeat_interleave(each, 0)[:, None] + 1)
        assert bool(((product.double().cpu() - exact).abs() <= bound).all())


@on_each_device
@pytest.mark.parametrize("group_size", [64, 32, 16])
def test_company_changes_no_bit_of_a_row(device, group_size):
    from fairlead_engine.kernels.quantized_expert_product_kernel import quantized_expert_product as product

    generator = torch.Generator().manual_seed(0)
    experts = torch.rand(9, 4, generator=generator).topk(2).indices
    weights = integers(
        4, 40, 64, group_size, is_float=False, has_offsets=False, in_any_order=False, generator=generator
    )
    weights = ExpertIntegers(weights.values.to(device), weights.scales.to(device), group_size)
    x, pairs = torch.randn(9, 64, generator=generator).to(device), pair_up(experts.to(device), 4)
    whole = product(x, None, weights, pairs, torch.float32)
    for row in (0, 4, 8):
        others = torch.randn_like(x)
        others[row] = x[row]
        found = product(others, None, weights, pairs, torch.float32)
        assert found[2 * row : 2 * row + 2].equal(whole[2 * row : 2 * row + 2])


COMPILE = """
from fairlead_engine.kernels import quantized_expert_product_kernel as kernel
from fairlead_engine_testing.gpu_code import compile_for_gpu, tell

types = dict.fromkeys(("output", "x"), "*bf16") | dict.fromkeys(("order", "ends", "groups"), "*i64")
types |= dict.fromkeys(("x_scales", "scales", "offsets"), "*fp32")
types |= dict.fromkeys(("out_features", "INPUT_SIZE", "x_stride", "num_groups"), "i32")
found = {}
for name, rows, stored, size, shape in (
    ("a scale for each row", kernel._FEW_ROWS, "i8", 0, (True, False, False, False)),
    ("rounded rows", kernel._FEW_ROWS, "i8", 0, (True, False, False, False)),
    ("rounded rows, many", kernel._MANY_ROWS, "fp8e4nv", 0, (True, False, False, False)),
    ("groups of 128, many", kernel._MANY_ROWS, "fp8e4nv", 128, (False, True, False, False)),
    ("groups of 32", kernel._FEW_ROWS, "i8", 32, (False, True, False, False)),
    ("groups of 32, many", kernel._MANY_ROWS, "i8", 32, (False, True, False, False)),
    ("groups of 128 with offsets", kernel._FEW_ROWS, "i8", 128, (False, True, True, False)),
    ("groups in any order", kernel._FEW_ROWS, "i8", 128, (False, False, True, True)),
    ("groups in any order, many", kernel._MANY_ROWS, "i8", 128, (False, False, True, True)),
):
    per_row, per_tile, has_offsets, has_groups = shape
    tile = kernel._TILE_COLUMNS if has_groups else min(size or 128, kernel._MOST_INPUTS[rows])
    is_rounded = name.startswith("rounded")
    constants = dict(
        PAIRS_PER_ROW=8, NUM_EXPERTS=128, PADDED_EXPERTS=128, GROUP_SIZE=size, TILE_ROWS=rows,
        TILE_OUTPUTS=kernel._TILE_OUTPUTS, TILE_INPUTS=tile, IS_EVEN=True, PER_ROW=per_row, PER_TILE=per_tile,
        HAS_ROW_SCALES=is_rounded, HAS_OFFSETS=has_offsets, HAS_GROUPS=has_groups,
    )
    found[name] = compile_for_gpu(
        kernel.quantized_expert_product_kernel,
        types | {"values": "*" + stored} | ({"x": "*" + stored} if is_rounded else {}),
        constants, num_warps=kernel._NUM_WARPS, num_stages=kernel._NUM_STAGES,
    )
tell(found)
"""


def test_for_a_gpu_it_reads_widely_spills_nothing_and_uses_tensor_cores(tmp_path):
    for name, code in compiled(COMPILE, tmp_path).items():
        assert code.spilled_bytes == 0, (name, code)
        assert code.wide_loads and code.tensor_products, (name, code)
        assert code.shared_bytes <= 75 * 1024, (name, code)  # so that three programs fit a multiprocessor
