"""Products with weights decoded on the way: what their numbers mean in float64, by torch and kernel; as GPU code."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.kernels.decoded_product import CodedWeight, decoded, decoded_product, packed, rounded
from fairlead_engine.kernels.rounded_rows import E4M3_ROWS
from fairlead_engine.model.quantization import coded_linear
from fairlead_engine.model.quantization.fp8 import DecodedFp8Linear
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight
from fairlead_engine_testing.devices import on_each_device
from fairlead_engine_testing.gpu_code import compiled

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
"""The interpreter's, where a number is none."""
STORED = {"int4": torch.int8, "int8": torch.int8, "e4m3": torch.float8_e4m3fn}


def some_weight(stored, shape, group_size, *, has_offsets=False, scales=torch.float32, generator=None):
    """On the CPU. 8-bit floats have rounded rows, integers have not."""
    groups = -(-shape[1] // group_size)
    values = torch.randint(-8, 8, shape, generator=generator).to(STORED[stored])
    return CodedWeight(
        packed(values) if stored == "int4" else values,
        (0.1 + torch.rand(groups, shape[0], generator=generator)).to(scales),
        group_size,
        torch.randn(groups, shape[0], generator=generator).to(scales) if has_offsets else None,
        E4M3_ROWS if stored == "e4m3" else None,
    )


def there(weight, device):
    return CodedWeight(*(part.to(device) if isinstance(part, torch.Tensor) else part for part in weight))


def test_nibbles_lie_by_halves_of_a_row_and_are_decoded():
    values = torch.arange(-8, 8, dtype=torch.int8).repeat(3, 1)
    found = packed(values)
    assert found.shape == (3, 8) and found[0].tolist() == [at | (at + 8) << 4 for at in range(8)]
    weight = CodedWeight(found, torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]), 8, torch.ones(2, 3))
    scales = weight.scales.t().repeat_interleave(8, 1)
    assert decoded(weight, slice(1, 3), torch.float32).equal((values * scales + 1)[1:])


@on_each_device
@settings(max_examples=30, deadline=None)
@given(
    num_rows=st.sampled_from([0, 1, 3, 16, 17, 70]),
    outputs=st.sampled_from([1, 48, 70, 200]),
    sizes=st.sampled_from([(128, 128), (64, 64), (130, 130), (96, 32), (512, 16), (192, 64), (70, 12), (512, 128)]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    stored=st.sampled_from(sorted(STORED)),
    scales=st.sampled_from([torch.float32, torch.float16]),
    has_offsets=st.booleans(),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_both_give_what_the_numbers_mean(
    device, num_rows, outputs, sizes, dtype, stored, scales, has_offsets, has_bias, seed
):
    from fairlead_engine.kernels import decoded_product_kernel as kernel

    generator = torch.Generator().manual_seed(seed)
    in_features, group_size = sizes
    has_offsets = has_offsets and stored != "e4m3"
    weight = some_weight(
        stored, (outputs, in_features), group_size, has_offsets=has_offsets, scales=scales, generator=generator
    )
    x = torch.randn(num_rows, in_features, generator=generator).to(dtype)
    bias = torch.randn(outputs, generator=generator).to(dtype) if has_bias else None
    for rows in (slice(None), slice(outputs // 3, outputs)):
        for way in (decoded.__wrapped__, kernel.decoded):
            exact = decoded(weight, rows, torch.float32)
            torch.testing.assert_close(way(there(weight, device), rows, dtype).cpu(), exact.to(dtype))
    meant, wide = decoded(weight, slice(None), torch.float64), rounded(x.float(), weight).double()
    wanted, size = wide @ meant.t() + (0 if bias is None else bias.double()), wide.abs() @ meant.abs().t() + 4
    tolerance = 2e-5 if dtype is torch.float32 else 2e-3
    if stored == "e4m3":
        tolerance *= 10  # a number near the middle of two may be rounded to either
    on_device = there(weight, device)
    bias = None if bias is None else bias.to(device)
    assert weight.num_bytes == on_device.num_bytes
    products = [decoded_product.__wrapped__]
    if kernel.can_multiply(weight):
        products.append(kernel.decoded_product)
    for product in products:
        found = product(x.to(device), on_device, bias)
        assert found.dtype is dtype and found.shape == wanted.shape
        assert bool(((found.double().cpu() - wanted).abs() <= tolerance * size).all()), product


@on_each_device
@pytest.mark.parametrize("stored", STORED)
def test_company_changes_no_bit_of_a_row(device, stored):
    """In the interpreter a row keeps its place: how numpy sums depends on it, with some processors."""
    from fairlead_engine.kernels.decoded_product_kernel import decoded_product

    weight = there(some_weight(stored, (80, 512), 64), device)
    for num_rows in (16, 40):
        x = torch.randn(num_rows, 512).to(device)
        whole = decoded_product(x, weight)
        for row in (0, 7, num_rows - 1):
            others = torch.randn_like(x)
            others[row] = x[row]
            assert decoded_product(others, weight)[row].equal(whole[row])
        x[3, 5], x[4, 6] = float("nan"), float("inf")
        found = decoded_product(x, weight)
        assert not bool(found[3:5].isfinite().any())
        assert found[:3].equal(whole[:3]) and found[5:].equal(whole[5:])


@on_each_device
def test_inputs_are_divided_and_arrivals_are_zeros_again(device, monkeypatch):
    from fairlead_engine.kernels import decoded_product_kernel as kernel

    weight = some_weight("int4", (70, 1024), 32)._replace(arrivals=torch.zeros(kernel.MOST_ARRIVALS, dtype=torch.int32))
    x, on_device = torch.randn(20, 1024), there(weight, device)
    wanted = x.double() @ decoded(weight, slice(None), torch.float32).double().t()
    assert kernel.product_tiles(weight, 20).splits > 1
    for programs in (kernel._PROGRAMS, 10, 1):
        monkeypatch.setattr(kernel, "_PROGRAMS", programs)
        found = kernel.decoded_product(x.to(device), on_device).cpu()
        assert bool(((found - wanted).abs() < 1e-3).all())
        assert not bool(on_device.arrivals.any())
    assert kernel.product_tiles(weight, 20).splits == 1


@on_each_device
@pytest.mark.parametrize(("stored", "group_size"), [("int4", 32), ("int4", 128), ("int8", 130), ("e4m3", 64)])
def test_a_layer_decodes_for_few_rows_on_the_way_and_for_many_before(device, stored, group_size, monkeypatch):
    """Weights as checkpoints have them."""
    from fairlead_engine.kernels import decoded_product_kernel as kernel

    for name in ("decoded", "decoded_product"):
        monkeypatch.setattr(coded_linear, name, getattr(kernel, name))
    monkeypatch.setattr(coded_linear, "has_kernels", lambda tensor: True)
    monkeypatch.setattr(coded_linear, "MOST_ROWS", 6)
    monkeypatch.setattr(coded_linear, "_PART_ELEMENTS", 256 * 10)
    inputs, row_format = 256 if group_size != 130 else 130, E4M3_ROWS if stored == "e4m3" else None
    values = torch.randint(-8, 8, (34, inputs)).to(STORED[stored])
    scales, bias = torch.rand(34, inputs // group_size), torch.randn(34)
    for offsets in (None,) if row_format else (None, torch.randn_like(scales)):
        weight = QuantizedWeight(values, scales.half().float(), group_size, offsets)
        on_device = replace(
            weight, values=values.to(device), scales=weight.scales.to(device),
            offsets=None if offsets is None else offsets.to(device),
        )  # fmt: skip
        bits = 4 if stored == "int4" else 8
        layer = coded_linear.coded_linear(on_device, bias.to(device), torch.float32, row_format, bits)
        assert layer is not None and layer.copies_weight
        coded = layer._weight
        assert coded.is_packed == (stored == "int4") and coded.scales.dtype is torch.float16
        assert layer.weight_bytes < values.nbytes + 4 * 34 * 10 + coded.arrivals.nbytes
        for num_rows in (0, 1, 6, 7):
            x = torch.randn(num_rows, inputs)
            rows = x if row_format is None else rounded(x, there(coded, "cpu"))
            wanted = rows.double() @ weight.dequantized(torch.float64).t() + bias
            assert bool(((layer(x.to(device)).cpu() - wanted).abs() <= 3e-3).all())


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_device_is_tried_and_what_the_kernel_does_not_take_is_told(device, dtype, monkeypatch):
    from fairlead_engine.kernels import decoded_product_kernel as kernel

    monkeypatch.setattr(coded_linear, "decoded_product", kernel.decoded_product)
    monkeypatch.setattr(coded_linear, "has_kernels", lambda tensor: True)
    coded_linear.can_multiply.cache_clear()
    for stored in (torch.uint8, torch.int8, torch.float8_e4m3fn):
        assert coded_linear.can_multiply(torch.device(device), dtype, stored)
    values = torch.zeros(8, 96, dtype=torch.int8, device=device)
    odd = QuantizedWeight(values.to(torch.float8_e4m3fn), torch.ones(8, 2, device=device), 48)
    assert coded_linear.coded_linear(odd, None, dtype, E4M3_ROWS) is None
    mixed = QuantizedWeight(values, torch.ones(8, 2, device=device), 48, groups=torch.arange(96, device=device) % 2)
    assert coded_linear.coded_linear(mixed, None, dtype, None) is None
    coded_linear.can_multiply.cache_clear()
    monkeypatch.setattr(coded_linear, "decoded_product", lambda x, weight: x.new_zeros(3, 64))
    assert not coded_linear.can_multiply(torch.device(device), dtype, torch.int8)
    assert coded_linear.coded_linear(QuantizedWeight(values, odd.scales, 48), None, dtype, None) is None
    coded_linear.can_multiply.cache_clear()


@pytest.mark.parametrize("most", [0, 4])
def test_rows_so_few_that_it_is_faster_take_the_kernel(monkeypatch, most):
    weight = QuantizedWeight(torch.ones(16, 32).to(torch.float8_e4m3fn), torch.ones(16, 1), 32)
    asked = []
    monkeypatch.setattr(coded_linear, "kept_rows", lambda *product: asked.append(product) or most)
    monkeypatch.setattr(coded_linear, "coded_linear", lambda *parts: lambda x: x + 1)
    linear = coded_linear.faster_for_few_rows(
        DecodedFp8Linear(weight, None, torch.float32), weight, None, torch.float32, E4M3_ROWS
    )
    name, ours, theirs, like, outputs = asked[0]
    assert outputs == 16 and like.shape[1] == 32 and "e4m3" in name
    x = torch.ones(5, 32)
    assert ours(x, like).equal(x + 1) and theirs(x, like).equal(torch.full((5, 16), 32.0))
    assert linear(x).equal(torch.full((5, 16), 32.0)) and linear.weight_bytes >= 16 * 32
    assert linear(x[:4]).equal(x[:4] + 1 if most else torch.full((4, 16), 32.0))
    monkeypatch.setattr(coded_linear, "coded_linear", lambda *parts: None)
    assert coded_linear.faster_for_few_rows(linear, weight, None, torch.float32, E4M3_ROWS) is linear


COMPILE = """
from fairlead_engine.kernels import decoded_product_kernel as kernel
from fairlead_engine_testing.gpu_code import compile_for_gpu, tell

found = {}
for stored, size, rounding, scaling in (
    ("fp8e4nv", 128, kernel.BY_TILE, kernel.PER_TILE),
    ("fp8e4nv", 128, kernel.TILES_BEFORE, kernel.PER_TILE),
    ("fp8e4nv", 4096, kernel.ROWS_BEFORE, kernel.PER_ROW),
    ("i8", 4096, kernel.UNROUNDED, kernel.PER_ROW),
    ("i8", 128, kernel.UNROUNDED, kernel.PER_TILE),
    ("i8", 32, kernel.UNROUNDED, kernel.PER_TILE),
    ("u8", 128, kernel.UNROUNDED, kernel.PER_TILE),
    ("u8", 32, kernel.UNROUNDED, kernel.PER_TILE),
):
    for rows in (kernel.FEW_ROWS, kernel.MANY_ROWS):
        if rounding == (kernel.BY_TILE if rows == kernel.MANY_ROWS else kernel.TILES_BEFORE):
            continue
        types = dict.fromkeys(("output", "bias", "x"), "*bf16") | {"values": "*" + stored, "arrivals": "*i32"}
        types |= dict.fromkeys(("parts", "x_scales", "scales", "offsets"), "*fp32")
        types |= dict.fromkeys(("num_rows", "OUTPUT_SIZE", "INPUT_SIZE", "x_stride"), "i32")
        if rounding in (kernel.ROWS_BEFORE, kernel.TILES_BEFORE):
            types["x"] = "*fp8e4nv"
        is_packed = stored == "u8"
        most = 64 if is_packed and rows == kernel.MANY_ROWS else 128
        tiles = kernel.ProductTiles(rows, 64, min(size, most), 4, scaling, 4, kernel.num_stages(rows))
        constants = dict(
            GROUP_SIZE=size, TILE_ROWS=rows, TILE_OUTPUTS=64, TILE_INPUTS=tiles.inputs, SPLITS=4, IS_EVEN=True,
            IS_PACKED=is_packed, SCALING=scaling, HAS_OFFSETS=stored == "u8", HAS_BIAS=False, ROUNDING=rounding,
            LARGEST=448.0, IS_INTEGER=False,
        )
        found[f"{stored}, {size}, {rows}, {rounding}"] = compile_for_gpu(
            kernel.decoded_product_kernel, types, constants, num_warps=tiles.num_warps, num_stages=tiles.num_stages
        )
tell(found)
"""


@pytest.mark.compute
def test_for_a_gpu_it_reads_widely_spills_nothing_and_uses_tensor_cores(tmp_path):
    for name, code in compiled(COMPILE, tmp_path).items():
        assert code.spilled_bytes == 0, (name, code)
        assert code.wide_loads and code.tensor_products, (name, code)
        assert code.shared_bytes <= 75 * 1024, (name, code)  # so that three programs fit a multiprocessor
