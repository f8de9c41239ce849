"""Triton's kernels beside the fused operations: the same as plain torch, and good code for a GPU."""

from types import SimpleNamespace

import pytest
import torch

from fairlead_engine.kernels import dispatch
from fairlead_engine.kernels.attention.backend import CacheLayout
from fairlead_engine.kernels.attention.stored_heads import KV_DTYPES
from fairlead_engine.kernels.gates import gelu_mul, silu_mul, xielu
from fairlead_engine.kernels.norm_rope_store import HeadNorm, HeadTurn, norm_rope_store
from fairlead_engine.kernels.rms_norm import add_rms_norm, rms_norm
from fairlead_engine.kernels.rounded_rows import E4M3_ROWS, INT8_ROWS, rounded_rows
from fairlead_engine.kernels.scaled_product import scaled_product
from fairlead_engine_testing.devices import on_each_device
from fairlead_engine_testing.gpu_code import compiled
from fairlead_engine_testing.kv_caches import side_by_side, spoil

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3}
LARGEST_STEP = {torch.int8: 1.01, torch.float8_e4m3fn: 32.1}
"""From one number of a format of the cache to the next."""
in_each_format = pytest.mark.parametrize("dtype", TOLERANCES)


def assert_same(found, expected, dtype):
    torch.testing.assert_close(found, expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@on_each_device
@in_each_format
@pytest.mark.parametrize("shape", [(1, 8), (3, 48), (2, 5, 128), (0, 16)])
def test_rms_norm(device, dtype, shape):
    from fairlead_engine.kernels import rms_norm_kernel

    x, weight = torch.randn(shape, device=device, dtype=dtype), torch.randn(shape[-1], device=device, dtype=dtype)
    assert_same(rms_norm_kernel.rms_norm(x, weight, 1e-3), rms_norm.__wrapped__(x, weight, 1e-3), dtype)


@on_each_device
@in_each_format
@pytest.mark.parametrize("shape", [(1, 8), (5, 72), (0, 16)])
def test_add_rms_norm(device, dtype, shape):
    from fairlead_engine.kernels import rms_norm_kernel

    update, stream = torch.randn(2, *shape, device=device, dtype=dtype)
    before, weight = stream.clone(), torch.randn(shape[1], device=device, dtype=dtype)
    found = rms_norm_kernel.add_rms_norm(update, stream, weight, 1e-5)
    for one, other in zip(found, add_rms_norm.__wrapped__(update, stream, weight, 1e-5), strict=True):
        assert_same(one, other, dtype)
    assert torch.equal(stream, before)


@on_each_device
@in_each_format
@pytest.mark.parametrize("shape", [(1, 8, 8), (5, 2, 72), (0, 3, 16), (2, 1, 8)])
def test_add_rms_norm_sums_an_update_in_parts(device, dtype, shape):
    from fairlead_engine.kernels import rms_norm_kernel

    update, stream = torch.randn(shape, device=device, dtype=dtype), torch.randn(shape[::2], device=device, dtype=dtype)
    weight = torch.randn(shape[2], device=device, dtype=dtype)
    found = rms_norm_kernel.add_rms_norm(update, stream, weight, 1e-5)
    for one, other in zip(found, add_rms_norm.__wrapped__(update, stream, weight, 1e-5), strict=True):
        assert_same(one, other, dtype)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, of NaN
@on_each_device
@in_each_format
@pytest.mark.parametrize("row_format", [INT8_ROWS, E4M3_ROWS], ids=lambda row_format: str(row_format.dtype))
@pytest.mark.parametrize("shape", [(1, 2), (5, 72), (2, 2600), (2, 16_900), (0, 8)])
def test_rounded_rows(device, dtype, row_format, shape):
    from fairlead_engine.kernels import rounded_rows_kernel

    x = (torch.randn(shape, device=device) * torch.logspace(-4, 0, shape[1], device=device)).to(dtype)
    (found, scales), (wanted, of_twin) = (
        rounded(x, row_format) for rounded in (rounded_rows_kernel.rounded_rows, rounded_rows.__wrapped__)
    )
    assert found.dtype is wanted.dtype is row_format.dtype
    padded, same = rounded_rows_kernel.rounded_rows(x, row_format, 17)
    assert len(padded) == 17 and padded[: len(x)].float().equal(found.float()) and same.equal(scales)
    torch.testing.assert_close(scales, of_twin)
    gap = (found.float() - wanted.float()).abs()  # halfway between two it may go either way, as the last bit happens
    assert bool((gap <= LARGEST_STEP[row_format.dtype]).all()) and int((gap > 0).sum()) <= x.numel() // 100
    x[:1, 0], x[1:, -1] = float("nan"), float("inf")
    assert not bool(rounded_rows_kernel.rounded_rows(x, row_format)[1].isfinite().any())


@on_each_device
@in_each_format
@pytest.mark.parametrize("shape", [(1, 2), (3, 24), (2, 2600), (0, 8)])
@pytest.mark.parametrize("gate", [silu_mul, gelu_mul])
def test_gates(device, dtype, shape, gate):
    from fairlead_engine.kernels import gates_kernel

    gate_up = 3 * torch.randn(shape, device=device, dtype=dtype)
    assert_same(getattr(gates_kernel, gate.__name__)(gate_up), gate.__wrapped__(gate_up.clone()), dtype)


@on_each_device
@in_each_format
@pytest.mark.parametrize("limit", [-1e-6, -0.5])
@pytest.mark.parametrize("shape", [(1, 2), (3, 24), (2, 2600), (0, 8)])
def test_xielu(device, dtype, shape, limit):
    from fairlead_engine.kernels import gates_kernel

    up = torch.randn(shape, device=device) * torch.logspace(-6, 1, shape[1], device=device)
    numbers = {"above": 0.8, "below": 1.3, "slope": 0.5, "limit": limit}
    found, wanted = (each(up.to(dtype), **numbers) for each in (gates_kernel.xielu, xielu.__wrapped__))
    assert found.dtype is dtype
    # Two terms as large as `up` may cancel, and exp differs in its last bit between processors.
    gap = (found.double() - wanted.double()).abs()
    assert bool((gap <= TOLERANCES[dtype] * (wanted.double().abs() + up.double().abs())).all())


@on_each_device
@in_each_format
@pytest.mark.parametrize("shape", [(1, 2), (5, 72), (2, 2600), (0, 8)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_scaled_product(device, dtype, shape, has_bias):
    from fairlead_engine.kernels import scaled_product_kernel

    sums = torch.randint(-(10**6), 10**6, (shape[0] + 3, shape[1]), dtype=torch.int32, device=device)
    row_scales, column_scales = 1e-3 * torch.rand(shape[0], 1, device=device), torch.rand(shape[1], device=device)
    bias = torch.randn(shape[1], device=device, dtype=dtype) if has_bias else None
    given = sums, row_scales, column_scales, bias, dtype
    assert_same(scaled_product_kernel.scaled_product(*given), scaled_product.__wrapped__(*given), dtype)


def two_caches(num_kv_heads: int, head_dim: int, dtype, kv_dtype, device: str):
    """With room for 12 tokens, and nothing in them."""
    layout = CacheLayout(
        num_layers=2, num_heads=num_kv_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=3, dtype=dtype,
        device=torch.device(device), kv_dtype=kv_dtype,
    )  # fmt: skip
    caches = layout.caches(lambda each: (4, 3, *each))
    for cache in caches:
        spoil(cache)
    return caches


@on_each_device
@in_each_format
@pytest.mark.parametrize("kv_dtype", KV_DTYPES.values(), ids=KV_DTYPES)
@pytest.mark.parametrize("norm", [None, "first", "last"])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "num_turned"),
    [(4, 2, 16, 16), (3, 1, 6, 6), (20, 5, 8, 8), (4, 2, 16, 12)],
)
def test_norm_rope_store(device, dtype, kv_dtype, norm, num_heads, num_kv_heads, head_dim, num_turned):
    from fairlead_engine.kernels import norm_rope_store_kernel

    heads = torch.randn(3, num_heads + 2 * num_kv_heads, head_dim, device=device, dtype=dtype)
    cosines, sines = torch.randn(2, 3, 1, num_turned, device=device, dtype=dtype)
    weights = torch.randn(2, head_dim, device=device, dtype=dtype)
    norm = None if norm is None else HeadNorm(weights[0], weights[1], 1e-4, is_last=norm == "last")
    turn, slots = HeadTurn(num_kv_heads, num_kv_heads, cosines, sines, norm), torch.tensor([7, 0, 11], device=device)
    one, other = two_caches(num_kv_heads, head_dim, dtype, kv_dtype, device)
    found = norm_rope_store_kernel.norm_rope_store(heads, turn, one.keys, one.values, slots)
    assert_same(found, norm_rope_store(heads, turn, other.keys, other.values, slots), dtype)
    for stored, wanted in ((one.keys, other.keys), (one.values, other.values)):
        assert int(stored.floats(torch.float32).isfinite().sum()) == 3 * num_kv_heads * head_dim
        stored, wanted = (each.flatten(0, 1).gather(0, slots) for each in (stored, wanted))
        gap = (stored.floats(torch.float32) - wanted.floats(torch.float32)).abs()
        most = torch.full_like(gap, 10 * TOLERANCES[dtype])
        if wanted.scales is not None:
            torch.testing.assert_close(stored.scales, wanted.scales, rtol=TOLERANCES[dtype], atol=0.0)
            # A number halfway between two may go either way, as its last bit happens to be; so may the largest before
            # it is made a scale, which moves all others of its head with it.
            moved = wanted.numbers.float().abs() * (stored.scales - wanted.scales).abs().unsqueeze(-1)
            most = LARGEST_STEP[kv_dtype] * wanted.scales.unsqueeze(-1) + moved
        assert bool((gap <= most).all())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, of NaN
@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES.values(), ids=KV_DTYPES)
@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(1, 2), (3, 20), (2, 128)])
def test_a_token_is_stored_as_its_twin_has_it_to_the_bit(device, dtype, kv_dtype, num_kv_heads, head_dim):
    """Heads that are not turned are what they were, so what is rounded is the same."""
    from fairlead_engine.kernels import norm_rope_store_kernel

    cache, twin = two_caches(num_kv_heads, head_dim, dtype, kv_dtype, device)
    heads = torch.randn(9, 4 * num_kv_heads, head_dim, device=device)
    heads *= torch.logspace(-4, 0, head_dim, device=device)[torch.randperm(head_dim)]
    heads = (heads * torch.logspace(-6, 4, 9, device=device)[:, None, None]).to(dtype)
    heads[2] = 0.0
    heads[3, :, 0], heads[4, :, -1] = float("nan"), float("-inf")
    heads, turn = side_by_side(heads[:, : 2 * num_kv_heads], *heads[:, 2 * num_kv_heads :].split(num_kv_heads, 1))
    slots = torch.tensor([5, 0, 7, 11, 1, 2, 8, 10, 4], device=device)
    for norm_rope_stored, stored in ((norm_rope_store_kernel.norm_rope_store, cache), (norm_rope_store, twin)):
        norm_rope_stored(heads, turn, stored.keys, stored.values, slots)
    for found, wanted in zip(cache.stored, twin.stored, strict=True):
        both = (found.floats(torch.float32), wanted.floats(torch.float32))
        torch.testing.assert_close(*both, rtol=0.0, atol=0.0, equal_nan=True)


def test_a_tensor_on_cuda_goes_to_the_kernel_and_no_other(monkeypatch):
    from fairlead_engine.kernels import gates_kernel

    def plain(x):
        return "torch"

    plain.__name__ = "silu_mul"
    monkeypatch.setattr(gates_kernel, "silu_mul", lambda x: "kernel")
    module, on_cuda, on_cpu = gates_kernel.__name__, SimpleNamespace(is_cuda=True), SimpleNamespace(is_cuda=False)
    dispatched = dispatch.with_kernel(module)(plain)
    assert (dispatched(on_cuda), dispatched(on_cpu)) == ("kernel", "torch")
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None)
    assert dispatch.with_kernel(module)(plain)(on_cuda) == "torch"


COMPILE = """
from fairlead_engine.kernels import gates_kernel, norm_rope_store_kernel, rms_norm_kernel, rounded_rows_kernel
from fairlead_engine.kernels import scaled_product_kernel
from fairlead_engine_testing.gpu_code import compile_for_gpu, tell

names = "output total x update weight gate_up up query heads cosines sines query_weight key_weight"
types = {**dict.fromkeys(names.split(), "*bf16"), "eps": "fp32", "row_stride": "i32", "slot_mapping": "*i64"}
types |= dict.fromkeys(("key_scales", "value_scales"), "*fp32")
normalise = dict(SIZE=4096, PADDED_SIZE=4096)
found = {
    "norm": compile_for_gpu(rms_norm_kernel.normalise_kernel, types, dict(normalise, NUM_PARTS=0)),
    "add and norm": compile_for_gpu(rms_norm_kernel.normalise_kernel, types, dict(normalise, NUM_PARTS=1)),
    "add parts and norm": compile_for_gpu(rms_norm_kernel.normalise_kernel, types, dict(normalise, NUM_PARTS=8)),
    "gate": compile_for_gpu(gates_kernel.gate_kernel, types, dict(SIZE=12288, TILE=1024, IS_GELU=False)),
    "gelu": compile_for_gpu(gates_kernel.gate_kernel, types, dict(SIZE=12288, TILE=1024, IS_GELU=True)),
    "xielu": compile_for_gpu(
        gates_kernel.xielu_kernel,
        {**types, **dict.fromkeys(("above", "below", "slope", "limit"), "fp32")},
        dict(SIZE=21504, TILE=1024),
    ),
}
for stored, largest, has_norm, is_last in (
    ("bf16", 0, False, False), ("bf16", 0, True, False), ("bf16", 0, True, True), ("i8", 127, True, False),
    ("fp8e4nv", 448, True, False), ("fp8e4nv", 448, True, True),
):
    found[f"turn and store, {stored}, {has_norm}, {is_last}"] = compile_for_gpu(
        norm_rope_store_kernel.norm_rope_store_kernel,
        types | dict.fromkeys(("keys", "values"), "*" + stored),
        dict(
            NUM_HEADS=32, NUM_KV_HEADS=8, HEAD_DIM=128, PADDED_HALF=64, TILE_HEADS=16, HAS_NORM=has_norm,
            NORM_IS_LAST=is_last, LARGEST=largest, IS_INTEGER=stored == "i8",
        ),
    )
tile, num_warps = rounded_rows_kernel._tile(12288)
for stored, largest in (("i8", 127.0), ("fp8e4nv", 448.0)):
    found[f"round, {stored}"] = compile_for_gpu(
        rounded_rows_kernel.rounded_rows_kernel,
        {"output": "*" + stored, "scales": "*fp32", "x": "*bf16", "x_stride": "i32", "ROW_SIZE": "i32"},
        dict(LARGEST=largest, IS_INTEGER=stored == "i8", TILE=tile),
        num_warps=num_warps,
    )
scales = {"output": "*bf16", "sums": "*i32", "bias": "*bf16", "ROW_SIZE": "i32"}
found["scale"] = compile_for_gpu(
    scaled_product_kernel.scaled_product_kernel,
    scales | dict.fromkeys(("row_scales", "column_scales"), "*fp32"),
    dict(HAS_BIAS=True, TILE=scaled_product_kernel._TILE),
)
tell(found)
"""


@pytest.mark.compute
def test_for_a_gpu_they_read_widely_and_spill_nothing(tmp_path):
    for name, code in compiled(COMPILE, tmp_path).items():
        assert code.spilled_bytes == 0, (name, code)
        assert code.wide_loads, (name, code)
