"""Products with the experts that rows go to: what each expert alone gives, by torch and kernel; good code for a GPU."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlead_engine.kernels.expert_product import ExpertWeights, gated_product, row_product, weighted_product
from fairlead_engine.kernels.gates import GELU, SILU, Gate
from fairlead_engine.kernels.rounded_rows import E4M3_ROWS, INT8_ROWS, rounded_blocks, rounded_rows
from fairlead_engine.kernels.routes import ExpertRouting, shares
from fairlead_engine_testing.devices import on_each_device
from fairlead_engine_testing.gpu_code import compiled

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
"""The interpreter's, where an exponential is infinite or a number is none."""
FORMATS = {"floats": None, "int8": torch.int8, "e4m3": torch.float8_e4m3fn}


def some_weights(shape, group_size, stored, *, has_offsets, in_any_order, has_bias, rounds, dtype, generator):
    """Of that format and shape, on the CPU."""
    bias = torch.randn(shape[:2], generator=generator).to(dtype) if has_bias else None
    if FORMATS[stored] is None:
        return ExpertWeights(torch.randn(shape, generator=generator).to(dtype), bias=bias)
    num_experts, out_features, in_features = shape
    num_groups = -(-in_features // group_size)
    of_groups = num_experts, out_features, num_groups
    row_format = INT8_ROWS if stored == "int8" else E4M3_ROWS
    return ExpertWeights(
        torch.randint(-8, 8, shape, generator=generator).to(FORMATS[stored]),
        0.1 + torch.rand(of_groups, generator=generator),
        group_size,
        torch.randn(of_groups, generator=generator) if has_offsets else None,
        torch.randint(num_groups, (num_experts, in_features), generator=generator) if in_any_order else None,
        bias,
        row_format if rounds else None,
    )


def meant(weights):
    """float64, element by element."""
    values = weights.values.double()
    if weights.scales is not None:
        groups = torch.arange(values.shape[2]) // weights.group_size
        for expert, value in enumerate(values):
            columns = groups if weights.groups is None else weights.groups[expert]
            value *= weights.scales[expert][:, columns]
            if weights.offsets is not None:
                value += weights.offsets[expert][:, columns]
    return values


def rounded(rows, weights):
    if weights.row_format is None:
        return rows.double()
    if weights.rounds_by_blocks:
        return rounded_blocks(rows, weights.group_size, weights.row_format).double()
    values, scales = rounded_rows(rows, weights.row_format)
    return values.double() * scales.double()


def each_alone(rows, weights, experts):
    """Of rows [pairs, in_features], and how large what is summed is."""
    rows, chosen = rounded(rows, weights), meant(weights)[experts.flatten().long()]
    product, size = torch.einsum("pi,poi->po", rows, chosen), torch.einsum("pi,poi->po", rows.abs(), chosen.abs())
    if weights.bias is not None:
        product += weights.bias[experts.flatten().long()].double()
    return product, size + rows.abs().sum(1, keepdim=True) + 1


def there(weights, device):
    return ExpertWeights(*(part.to(device) if isinstance(part, torch.Tensor) else part for part in weights))


def routes_for(logits, routing, x, weights, device):
    from fairlead_engine.kernels.routes_kernel import find_routes

    return find_routes(logits.to(device), routing, x.to(device), weights.rounds_by_rows)


GATES = [SILU, GELU, Gate(1.7, 2.0)]


def each_gate_rounds(test):
    """Whatever is drawn: the product behind each gate rounds by what the product before tells it."""
    for gate in GATES:
        test = example(
            num_rows=2, num_experts=4, each=2, outputs=48, sizes=(64, 64), dtype=torch.float32, stored="e4m3",
            rounds=True, has_offsets=False, in_any_order=False, has_bias=False, gate=gate, normalised=False,
            is_large=False, seed=0,
        )(test)  # fmt: skip
    return test


@on_each_device
@settings(max_examples=30)
@given(
    num_rows=st.sampled_from([1, 2, 5, 20]),
    num_experts=st.sampled_from([1, 4, 7]),
    each=st.integers(1, 3),
    outputs=st.sampled_from([1, 48, 70]),
    sizes=st.sampled_from([(8, 8), (64, 64), (130, 130), (96, 32), (130, 16), (160, 64), (70, 12), (256, 128)]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    stored=st.sampled_from(sorted(FORMATS)),
    rounds=st.booleans(),
    has_offsets=st.booleans(),
    in_any_order=st.booleans(),
    has_bias=st.booleans(),
    gate=st.sampled_from(GATES),
    normalised=st.booleans(),
    is_large=st.booleans(),
    seed=st.integers(0, 99),
)
@each_gate_rounds
def test_both_give_what_each_expert_alone_gives(
    device, num_rows, num_experts, each, outputs, sizes, dtype, stored, rounds, has_offsets, in_any_order, has_bias,
    gate, normalised, is_large, seed,
):  # fmt: skip
    from fairlead_engine.kernels import expert_product_kernel as kernel

    generator = torch.Generator().manual_seed(seed)
    routing = ExpertRouting(min(each, num_experts), normalised, scale=1.5)
    in_features, group_size = sizes
    kind = {
        "stored": stored, "has_offsets": has_offsets, "in_any_order": in_any_order, "has_bias": has_bias,
        "rounds": rounds, "dtype": dtype, "generator": generator,
    }  # fmt: skip
    up, down = (
        some_weights((num_experts, num_outputs, in_features), group_size, **kind)
        for num_outputs in (2 * outputs, outputs)
    )
    x = torch.randn(num_rows, in_features, generator=generator).to(dtype)
    logits = torch.randn(num_rows, num_experts, generator=generator)
    routes = routes_for(logits, routing, x, up, device)
    experts, tolerance = routes.experts.cpu(), 1e-5 if dtype is torch.float32 else 3e-3
    by_pair = x.repeat_interleave(routing.num_chosen, 0)
    exact, size = each_alone(by_pair, up, experts)
    wanted = gate(exact)
    # A gate passes an error in either of its inputs on, at most as many times as large as the other.
    most = size.amax(1, keepdim=True) * (2 + 2 * exact.abs().amax(1, keepdim=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_MANY_PAIRS", 0 if is_large else 10**6)
        found = kernel.gated_product(x.to(device), there(up, device), routes, gate)
        if up.rounds_by_rows:
            assert routes.largest_within.equal(found.abs().amax(1).float())
        twin = gated_product.__wrapped__(x.to(device), there(up, device), routes, gate)
        for product in (found, twin):
            assert product.dtype is dtype
            finite = wanted.isfinite() & (wanted.abs() < 6e4)
            assert bool(((product.double().cpu() - wanted).abs() <= tolerance * most)[finite].all())

        if up.rounds_by_rows:
            routes.largest_within.copy_(by_pair.abs().amax(1))
        exact, size = each_alone(by_pair, down, experts)
        counted = shares(routes.scores, routing).cpu().double().view(-1, 1)
        for weighted in (kernel.weighted_product, weighted_product.__wrapped__):
            product = weighted(by_pair.to(device), there(down, device), routes, routing)
            assert product.dtype is dtype and product.shape == (num_rows, routing.num_chosen, outputs)
            gap = product.double().cpu().flatten(0, 1) - exact * counted
            assert bool((gap.abs() <= tolerance * size * counted + 1e-6).all())


@on_each_device
@pytest.mark.parametrize(("stored", "group_size"), [("floats", 64), ("int8", 64), ("int8", 32), ("e4m3", 16)])
def test_company_changes_no_bit_of_a_row(device, stored, group_size):
    """In the interpreter a row keeps its place: how numpy sums depends on it, with some processors."""
    from fairlead_engine.kernels import expert_product_kernel as kernel

    generator = torch.Generator().manual_seed(0)
    kind = {"has_offsets": False, "in_any_order": False, "has_bias": False, "rounds": stored != "floats"}
    weights = some_weights(
        (4, 80, 64), group_size, stored, dtype=torch.float32, generator=generator, **kind
    )  # fmt: skip
    x, logits = torch.randn(9, 64, generator=generator), torch.randn(9, 4, generator=generator)

    def computed(x):
        routes = routes_for(logits, ExpertRouting(2), x, weights, device)
        return kernel.gated_product(x.to(device), there(weights, device), routes)

    whole = computed(x)
    for row in (0, 4, 8):
        others = torch.randn_like(x)
        others[row] = x[row]
        assert computed(others)[2 * row : 2 * row + 2].equal(whole[2 * row : 2 * row + 2])


@on_each_device
def test_numbers_that_are_none_spoil_their_own_row_alone(device):
    from fairlead_engine.kernels import expert_product_kernel as kernel

    kind = {"has_offsets": False, "in_any_order": False, "has_bias": False, "rounds": True, "dtype": torch.float32}
    weights = some_weights((4, 80, 40), 40, "int8", generator=torch.Generator().manual_seed(0), **kind)
    x, logits, routing = torch.randn(5, 40), torch.randn(5, 4), ExpertRouting(2)

    def computed(x, logits):
        routes = routes_for(logits, routing, x, weights, device)
        rows = kernel.gated_product(x.to(device), there(weights, device), routes)
        return kernel.weighted_product(rows, there(weights, device), routes, routing).cpu()

    whole = computed(x, logits)
    x[1, 3], x[2, 0], logits[3] = float("nan"), float("inf"), float("nan")
    found = computed(x, logits)
    assert bool(found[[0, 4]].equal(whole[[0, 4]]))
    assert not bool(found[[1, 2, 3]].isfinite().any())


@on_each_device
@settings(max_examples=20)
@given(
    num_rows=st.sampled_from([1, 5, 20]),
    num_experts=st.sampled_from([1, 4]),
    outputs=st.sampled_from([1, 48, 70]),
    in_features=st.sampled_from([8, 64, 130]),
    stored=st.sampled_from(["floats", "int8"]),
    gate=st.sampled_from([SILU, Gate(1.7, 2.0)]),
    has_bias=st.booleans(),
    is_large=st.booleans(),
)
def test_what_adapters_add_is_added_before_the_gate(
    device, num_rows, num_experts, outputs, in_features, stored, gate, has_bias, is_large
):
    """And narrow products of tokens' rows, which come before."""
    from fairlead_engine.kernels import expert_product_kernel as kernel

    generator, routing = torch.Generator().manual_seed(num_rows), ExpertRouting(min(2, num_experts))
    kind = {"has_offsets": False, "in_any_order": False, "has_bias": has_bias, "rounds": False, "dtype": torch.float32}
    up = some_weights((num_experts, 2 * outputs, in_features), in_features, stored, generator=generator, **kind)
    narrow = some_weights((num_experts, outputs, in_features), 0, "floats", generator=generator, **kind)
    x = torch.randn(num_rows, in_features, generator=generator)
    routes = routes_for(torch.randn(num_rows, num_experts, generator=generator), routing, x, up, device)
    by_pair, experts = x.repeat_interleave(routing.num_chosen, 0), routes.experts.cpu()
    added = torch.randn(len(by_pair), 2 * outputs, generator=generator)
    exact, size = each_alone(by_pair, up, experts)
    wanted, size = gate(exact + added.double()), size + added.abs()
    most = size.amax(1, keepdim=True) * (2 + 2 * (exact + added).abs().amax(1, keepdim=True))
    plain, narrow_size = each_alone(by_pair, narrow, experts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_MANY_PAIRS", 0 if is_large else 10**6)
        for gated in (kernel.gated_product, gated_product.__wrapped__):
            found = gated(x.to(device), there(up, device), routes, gate, added.to(device)).double().cpu()
            assert bool(((found - wanted).abs() <= 1e-5 * most).all())
        for product in (kernel.row_product, row_product.__wrapped__):
            found = product(x.to(device), there(narrow, device), routes).double().cpu()
            assert bool(((found - plain).abs() <= 1e-5 * narrow_size).all())


COMPILE = """
from fairlead_engine.kernels import expert_product_kernel as kernel
from fairlead_engine_testing.gpu_code import compile_for_gpu, tell

types = dict.fromkeys(("output", "x", "bias", "added"), "*bf16") | dict.fromkeys(("order", "counts"), "*i32")
types |= dict.fromkeys(("output_largest", "x_largest", "scales", "offsets", "scores"), "*fp32") | {"groups": "*i64"}
types |= dict.fromkeys(("num_tokens", "out_features", "INPUT_SIZE", "x_stride", "weight_stride", "num_groups"), "i32")
types |= dict.fromkeys(("alpha", "limit", "route_scale", "least_sum"), "fp32")
FEW, MANY, ALL = kernel.FEW_ROWS, kernel.MANY_ROWS, (kernel.SIDE_BY_SIDE, kernel.BY_TURNS, kernel.UNGATED)
GATED = ALL[:2]
found = {}
for name, rows, stored, size, scaling, rounding, gates in (
    ("with what adapters add", FEW, "bf16", 0, kernel.FLOATS, kernel.UNROUNDED, GATED),
    ("with what adapters add", MANY, "bf16", 0, kernel.FLOATS, kernel.UNROUNDED, GATED),
    ("of tokens' rows", FEW, "bf16", 0, kernel.FLOATS, kernel.UNROUNDED, (kernel.PLAIN,)),
    ("of tokens' rows", MANY, "bf16", 0, kernel.FLOATS, kernel.UNROUNDED, (kernel.PLAIN,)),
    ("floats", FEW, "bf16", 0, kernel.FLOATS, kernel.UNROUNDED, ALL),
    ("floats", MANY, "bf16", 0, kernel.FLOATS, kernel.UNROUNDED, ALL),
    ("a scale for each row", FEW, "i8", 0, kernel.PER_ROW, kernel.UNROUNDED, ALL[::2]),
    ("rounded rows", FEW, "i8", 0, kernel.PER_ROW, kernel.BY_ROW, ALL[::2]),
    ("rounded rows", MANY, "fp8e4nv", 0, kernel.PER_ROW, kernel.BY_ROW, ALL[::2]),
    ("rounded blocks", FEW, "fp8e4nv", 128, kernel.PER_TILE, kernel.BY_TILE, ALL[::2]),
    ("rounded blocks", MANY, "fp8e4nv", 128, kernel.PER_TILE, kernel.BY_TILE, ALL[::2]),
    ("groups of 32", FEW, "i8", 32, kernel.PER_TILE, kernel.UNROUNDED, ALL[1:]),
    ("groups of 32", MANY, "i8", 32, kernel.PER_TILE, kernel.UNROUNDED, ALL[1:]),
    ("groups in any order", FEW, "i8", 128, kernel.PER_COLUMN, kernel.UNROUNDED, ALL[::2]),
    ("groups in any order", MANY, "i8", 128, kernel.PER_COLUMN, kernel.UNROUNDED, ALL[::2]),
):
    tile = 64 if scaling == kernel.FLOATS else min(size or 128, kernel._MOST_INPUTS[rows])
    tile = kernel._TILE_COLUMNS if scaling == kernel.PER_COLUMN else size if rounding == kernel.BY_TILE else tile
    shape, is_mixed = kernel.ExpertTiles(scaling, rounding, size, tile), scaling == kernel.PER_COLUMN
    for gate in gates:
        constants = dict(
            EACH=8, PADDED_EACH=8, NUM_EXPERTS=128, PADDED_EXPERTS=128, GROUP_SIZE=size, TILE_ROWS=rows,
            TILE_OUTPUTS=kernel.TILE_OUTPUTS, TILE_INPUTS=tile, IS_EVEN=True, SCALING=scaling, HAS_OFFSETS=is_mixed,
            HAS_GROUPS=is_mixed, HAS_BIAS=gate == kernel.BY_TURNS, ROUNDING=rounding, LARGEST=127.0,
            IS_INTEGER=stored == "i8", GATE=gate, IS_NORMALISED=gate == kernel.UNGATED,
            TELLS_LARGEST=rounding == kernel.BY_ROW and gate != kernel.UNGATED,
            HAS_ADDED=name.startswith("with what"),
        )
        found[f"{name}, {rows}, {gate}"] = compile_for_gpu(
            kernel.expert_product_kernel, types | {"values": "*" + stored}, constants,
            num_warps=kernel.num_warps(gate, shape, rows), num_stages=kernel.num_stages(shape, rows),
        )
tell(found)
"""


@pytest.mark.compute
def test_for_a_gpu_it_reads_widely_spills_nothing_and_uses_tensor_cores(tmp_path):
    for name, code in compiled(COMPILE, tmp_path).items():
        assert code.spilled_bytes == 0, (name, code)
        assert code.tensor_products, (name, code)
        is_narrow = name.startswith("groups") and ", 16, " in name  # 32 bytes of a row, 8 of them a thread
        assert code.wide_loads or is_narrow, (name, code)
        assert code.shared_bytes <= 75 * 1024, (name, code)  # so that three programs fit a multiprocessor
