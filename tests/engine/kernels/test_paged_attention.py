"""The paged-attention kernel, in Triton's interpreter, against attention written out; and compiled for real GPUs."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.kernels.attention.backend import CacheLayout
from fairlead_engine.kernels.attention.scoring import Scoring
from fairlead_engine.kernels.attention.stored_heads import quantize_heads
from fairlead_engine_testing.devices import on_each_device
from fairlead_engine_testing.gpu_code import compiled
from fairlead_engine_testing.kv_caches import as_stored, attention_written_out, device_batch, spoil

KV_DTYPES = [None, torch.int8, torch.float8_e4m3fn]


def run_kernel(
    num_queries: list[int],
    contexts: list[int],
    device: str,
    *,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 16,
    block_size: int = 4,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    num_programs: int = 1,
    shared_value_dim: int | None = None,
    query_stride: int | None = None,
    folder: Path | None = None,
    **options: object,
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Random sequences in scattered blocks of a cache whose other slots are NaN: what came out, what should have, and
    the splits of each grid. `query_stride`: from row to row, in memory or in a file of `folder`. `options` are of
    `Scoring`."""
    from fairlead_engine.kernels.attention.paged_attention import paged_attention
    from fairlead_engine.kernels.attention.triton_paged import TritonPaged

    generator = torch.Generator().manual_seed(len(contexts) + sum(contexts))
    num_blocks = sum(-(-context // block_size) for context in contexts) + 3
    layout = CacheLayout(
        num_layers=1, num_heads=heads[0], num_kv_heads=heads[1], head_dim=head_dim, block_size=block_size,
        dtype=dtype, device=torch.device(device), kv_dtype=kv_dtype, shared_value_dim=shared_value_dim,
    )  # fmt: skip
    backend = TritonPaged(num_programs)
    (cache,) = backend.allocate(layout, num_blocks)
    spoil(cache)
    free = list(range(num_blocks))
    random.Random(sum(contexts)).shuffle(free)
    tables, expected, queries = [], [], []
    for queried, context in zip(num_queries, contexts, strict=True):
        tables.append([free.pop() for _ in range(-(-context // block_size))])
        key, value = torch.randn(2, context, heads[1], head_dim, generator=generator).to(device, dtype)
        query = torch.randn(queried, heads[0], head_dim, generator=generator).to(device, dtype)
        slots = torch.tensor([tables[-1][i // block_size] * block_size + i % block_size for i in range(context)])
        for pool, written in zip(cache.stored, (key, value), strict=False):
            pool.flatten(0, 1).put(0, slots.to(device), written)
        key, value = (as_stored(each, kv_dtype) for each in (key, value))
        if shared_value_dim is not None:
            value = key[..., -shared_value_dim:]
        seen = [range(position + 1) for position in range(context - queried, context)]
        expected.append(attention_written_out(query, key, value, seen, Scoring(**options)))  # type: ignore[arg-type]
        queries.append(query)
    batch = device_batch(list(range(len(contexts))), num_queries, contexts, tables, device=torch.device(device))
    step = backend.prepare(batch, backend.tables(layout, len(contexts), max(map(len, tables))))
    query = torch.cat(queries)
    output = query.new_full((*query.shape[:2], shared_value_dim or head_dim), float("nan"))
    if query_stride is not None:  # before them as much, which is what numbers of 32 bits would lead to
        size, kind = 2**31 + len(query) * query_stride, {"dtype": dtype}
        far = torch.from_file(str(folder / "query"), shared=True, size=size, **kind) if device == "cpu" else None
        far = torch.zeros(size, device=device, **kind) if far is None else far
        query = far.as_strided(query.shape, (query_stride, head_dim, 1), 2**31).copy_(query)
    paged_attention(query, cache.keys, cache.values, output, step, Scoring(**options))  # type: ignore[arg-type]
    return output, torch.cat(expected), [grid.num_splits for grid in step.grids]


def assert_near(output: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.compute
@on_each_device
@settings(deadline=None, max_examples=25)
@given(
    shares=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 150)), min_size=1, max_size=3),
    block_size=st.integers(1, 20),
    heads=st.sampled_from([(2, 2), (4, 2), (3, 1), (8, 1), (34, 1)]),
    head_dim=st.sampled_from([8, 16, 20]),
    window=st.sampled_from([0, 1, 7, 100]),
    soft_cap=st.sampled_from([0.0, 1.5]),
    has_sinks=st.booleans(),
    is_aligned=st.booleans(),
    kv_dtype=st.sampled_from(KV_DTYPES),
    shared_value_dim=st.sampled_from([None, None, 5, 7]),
)
def test_any_mixture_equals_the_definition(
    device, shares, block_size, heads, head_dim, window, soft_cap, has_sinks, is_aligned, kv_dtype, shared_value_dim
):
    shares = sorted(shares, key=lambda share: share[0] > 1)
    sinks = torch.linspace(-1.0, 2.0, heads[0], device=device) if has_sinks else None
    output, expected, _ = run_kernel(
        [queries for queries, _ in shares],
        [queries + before for queries, before in shares],
        device, block_size=block_size, heads=heads, head_dim=head_dim, window=window, soft_cap=soft_cap, sinks=sinks,
        is_aligned=is_aligned, kv_dtype=kv_dtype, shared_value_dim=shared_value_dim,
    )  # fmt: skip
    assert_near(output, expected)


@on_each_device
@pytest.mark.parametrize("num_queries", [1, 5])
@pytest.mark.parametrize(
    ("window", "has_sinks", "kv_dtype"),
    [(0, False, None), (0, True, torch.float8_e4m3fn), (300, True, None), (300, True, torch.int8)],
)
def test_a_long_context_is_shared_by_several_programs(device, num_queries, window, has_sinks, kv_dtype):
    sinks = torch.tensor([0.5, -2.0, 3.0, 0.0], device=device) if has_sinks else None
    output, expected, splits = run_kernel(
        [num_queries] * 2, [1500, 40], device, block_size=16, num_programs=16, window=window, sinks=sinks,
        kv_dtype=kv_dtype,
    )  # fmt: skip
    assert splits == [4]
    assert_near(output, expected)


@on_each_device
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_latents_of_many_heads_are_shared_by_several_programs(device, kv_dtype):
    output, expected, splits = run_kernel(
        [1, 1, 5], [1100, 40, 90], device, block_size=16, heads=(32, 1), head_dim=72, num_programs=32,
        kv_dtype=kv_dtype, shared_value_dim=64,
    )  # fmt: skip
    assert splits == [4, 1]
    assert_near(output, expected)


@on_each_device
def test_decodes_and_chunks_are_two_grids(device):
    output, expected, splits = run_kernel([1, 1, 3, 70], [600, 3, 9, 90], device, block_size=16, num_programs=8)
    assert len(splits) == 2
    assert_near(output, expected)


@on_each_device
@pytest.mark.parametrize("num_programs", [1, 16])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_half_precision_stays_near_the_definition(device, num_programs, kv_dtype):
    output, expected, _ = run_kernel(
        [1, 9],
        [700, 20],
        device,
        block_size=16,
        head_dim=64,
        heads=(8, 2),
        dtype=torch.float16,
        kv_dtype=kv_dtype,
        num_programs=num_programs,
    )
    assert output.dtype is torch.float16
    assert_near(output, expected, 2e-3)


@on_each_device
def test_queries_may_lie_more_than_two_billion_numbers_apart(device, tmp_path):
    """As those of tens of thousands of tokens with a hundred wide heads do: here in a file that is nearly all holes."""
    output, expected, _ = run_kernel([5], [9], device, dtype=torch.float16, query_stride=2**29, folder=tmp_path)
    assert_near(output, expected, 2e-3)


@on_each_device
@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 3e4])
def test_values_of_any_size_keep_their_precision_in_half_precision(device, size):
    """What a value's scale makes of a weight is no number of float16 by itself."""
    from fairlead_engine.kernels.attention.paged_attention import paged_attention
    from fairlead_engine.kernels.attention.triton_paged import TritonPaged

    layout = CacheLayout(
        num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, block_size=16, dtype=torch.float16,
        device=torch.device(device), kv_dtype=torch.int8,
    )  # fmt: skip
    backend = TritonPaged()
    (cache,) = backend.allocate(layout, 10)
    query, key = torch.randn(1, 2, 16, device=device).half(), torch.randn(150, 1, 16, device=device)
    value = torch.randn(150, 1, 16, device=device) * size
    slots = torch.arange(150, device=device)
    cache.keys.flatten(0, 1).put(0, slots, key)
    cache.values.flatten(0, 1).put(0, slots, value)
    batch = device_batch([0], [1], [150], [list(range(10))], device=layout.device)
    step = backend.prepare(batch, backend.tables(layout, 1, 10))
    output = torch.empty_like(query, dtype=torch.float32)
    paged_attention(query, cache.keys, cache.values, output, step)
    stored = as_stored(key, torch.int8), as_stored(value, torch.int8)
    expected = attention_written_out(query, *stored, [range(150)])
    torch.testing.assert_close(output.double() / size, expected / size, rtol=2e-3, atol=2e-3)


@on_each_device
@pytest.mark.parametrize("shared_value_dim", [None, 16])
@pytest.mark.parametrize("size", [1e-30, 1e-5, 1.0, 1e5, 1e30])
@pytest.mark.parametrize(("kv_dtype", "tolerance"), [(torch.float8_e4m3fn, 1e-3), (torch.int8, 4e-3)])
def test_queries_of_any_size_keep_their_precision_beside_8_bits(device, size, shared_value_dim, kv_dtype, tolerance):
    """No bfloat16 beyond 65,504 is a number of float16, nor one below 6e-8 by itself."""
    from fairlead_engine.kernels.attention.paged_attention import paged_attention
    from fairlead_engine.kernels.attention.triton_paged import TritonPaged

    # The interpreter makes no bfloat16 of whole numbers.
    dtype = torch.float32 if device == "cpu" and kv_dtype is torch.int8 else torch.bfloat16
    layout = CacheLayout(
        num_layers=1, num_heads=4, num_kv_heads=1, head_dim=32, block_size=16, dtype=dtype,
        device=torch.device(device), kv_dtype=kv_dtype, shared_value_dim=shared_value_dim,
    )  # fmt: skip
    backend = TritonPaged()
    (cache,) = backend.allocate(layout, 10)
    sizes = size * torch.tensor([1.0, 0.01, 3.0, 0.0], device=device)  # of one tile's rows
    query = torch.randn(1, 4, 32, device=device) * 10.0 ** torch.linspace(-4, 0, 32, device=device)
    query = (query * sizes[:, None]).to(dtype)
    key, value = torch.randn(150, 1, 32, device=device) / size, torch.randn(150, 1, 32, device=device)
    for pool, written in zip(cache.stored, (key, value), strict=False):
        pool.flatten(0, 1).put(0, torch.arange(150, device=device), written)
    step = backend.prepare(device_batch([0], [1], [150], [list(range(10))]), backend.tables(layout, 1, 10))
    output = torch.empty_like(query, dtype=torch.float32)[..., : shared_value_dim or 32].contiguous()
    paged_attention(query, cache.keys, cache.values, output, step)
    stored = [as_stored(each, kv_dtype) for each in (key, value)]
    if shared_value_dim is not None:
        stored[1] = stored[0][..., -shared_value_dim:]
    expected = attention_written_out(query, *stored, [range(150)])
    largest = stored[1].abs().max()
    torch.testing.assert_close(output.double() / largest, expected / largest, rtol=tolerance, atol=tolerance)


@given(
    exponent=st.integers(-30, 30),
    dtype=st.sampled_from([torch.int8, torch.float8_e4m3fn]),
    shape=st.sampled_from([(1, 1), (7, 16), (2, 3, 128)]),
    seed=st.integers(0, 99),
)
def test_what_is_read_back_errs_by_half_a_step_at_most(exponent, dtype, shape, seed):
    """Of integers, a 254th of the head's largest number; of floats, a 16th of each, or half the smallest one's step."""
    heads = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    numbers, scales = quantize_heads(heads, dtype)
    error = (numbers.float() * scales.unsqueeze(-1) - heads).abs()
    highest = heads.abs().amax(-1, keepdim=True)
    if dtype == torch.int8:
        most = highest / 254
    else:
        most = (heads.abs() / 16).maximum(highest / 448 * 2.0**-10)
    assert bool((error <= most * (1 + 1e-5)).all())
    for row, wanted in zip(heads.flatten(0, -2), numbers.flatten(0, -2), strict=True):  # whatever else is there
        assert quantize_heads(row, dtype)[0].float().equal(wanted.float())


COMPILE = """
from fairlead_engine.kernels.attention import paged_attention, triton_paged
from fairlead_engine_testing.gpu_code import compile_for_gpu, tell

types = {**dict.fromkeys(("output", "query", "sinks"), "*bf16"), "table_rows": "*i64"}
types |= dict.fromkeys(("slots", "context_lens", "query_starts", "tile_sequences", "tile_starts"), "*i32")
types |= dict.fromkeys(("tree_limits", "tree_bits"), "*i64")
types |= {"scale": "fp32", "soft_cap": "fp32", "query_stride": "i32", "table_stride": "i32", "grid_row": "i32"}
types |= dict.fromkeys(("key_scales", "value_scales"), "*fp32")
found = {}
stored_in = {"bf16": 0, "i8": 127, "fp8e4nv": 448}
heads = dict(NUM_HEADS=32, NUM_KV_HEADS=8, HEAD_DIM=128, REST_DIM=0, PADDED_DIM=128, PADDED_REST=16, TILE_HEADS=4)
latent = dict(NUM_HEADS=128, NUM_KV_HEADS=1, HEAD_DIM=576, REST_DIM=64, PADDED_DIM=512, PADDED_REST=64, TILE_HEADS=16)
chunk, latent_chunk = triton_paged.CHUNK_TILE, triton_paged.LATENT_CHUNK_TILE
for name, rows, splits, shape, dims, formats, window in (
    ("decode", 16, 1, triton_paged.DECODE_TILE, heads, stored_in, 0),
    ("split decode", 16, 8, triton_paged.DECODE_TILE, heads, stored_in, 0),
    ("chunk", chunk.least_rows, 1, chunk, heads, stored_in, 0),
    ("latent decode", 16, 8, triton_paged.LATENT_DECODE_TILE, latent, stored_in, 0),
    ("latent chunk", latent_chunk.least_rows, 1, latent_chunk, latent, stored_in, 0),
    ("tree chunk", chunk.least_rows, 1, chunk, heads, ["bf16", "i8"], 0),
    ("tree chunk in a window", chunk.least_rows, 1, chunk, heads, ["bf16", "i8"], 4096),
    ("aligned chunk", chunk.least_rows, 1, chunk, heads, stored_in, 8192),
    ("tree chunk in an aligned window", chunk.least_rows, 1, chunk, heads, ["bf16"], 8192),
    ("tree latent chunk", latent_chunk.least_rows, 1, latent_chunk, latent, ["bf16", "i8"], 0),
):
    for stored in formats:
        types |= dict.fromkeys(("partial_output", "partial_max", "partial_sum"), "*fp32" if splits > 1 else "*bf16")
        types |= dict.fromkeys(("keys", "values"), "*" + stored)
        constants = dict(
            **dims, BLOCK_SIZE=16, TILE_ROWS=rows, TILE_TOKENS=shape.tokens, WINDOW=window,
            HAS_SOFT_CAP=False, HAS_SINKS=False, HAS_SCALES=stored_in[stored] > 0, NUM_SPLITS=splits,
            HAS_TREES=name.startswith("tree"), IS_ALIGNED="aligned" in name,
        )
        found[f"{name}, {stored}"] = compile_for_gpu(
            paged_attention.paged_attention_kernel, types, constants, num_warps=shape.num_warps,
            num_stages=shape.num_stages,
        )
types |= dict.fromkeys(("partial_output", "partial_max", "partial_sum"), "*fp32")
constants = dict(NUM_HEADS=32, HEAD_DIM=128, PADDED_DIM=128, NUM_SPLITS=8, PADDED_SPLITS=8, HAS_SINKS=False)
found["put together"] = compile_for_gpu(paged_attention.put_together_kernel, types, constants)
tell(found)
"""


@pytest.mark.compute
def test_for_a_gpu_it_reads_widely_spills_nothing_and_uses_tensor_cores(tmp_path):
    found = compiled(COMPILE, tmp_path)
    assert {"latent chunk, i8", "tree latent chunk, i8"} <= found.keys()
    for name, code in found.items():
        assert code.spilled_bytes == 0, (name, code)
        assert code.wide_loads, (name, code)
        if not name.startswith("tree"):  # so that two programs fit a multiprocessor
            assert code.shared_bytes <= 113 * 1024, (name, code)
    for name in ("decode, bf16", "decode, i8", "decode, fp8e4nv", "split decode, bf16"):
        assert found[name].registers * 128 * 3 <= 65536, (name, found[name])  # three programs fit, with two tiles each
        assert found[name].shared_bytes * 3 <= 224 * 1024, (name, found[name])
        assert found[name].shared_bytes >= 2 * 64 * 256 * (2 if "bf16" in name else 1), (name, found[name])
    assert all(code.tensor_products for name, code in found.items() if "decode" in name or "chunk" in name), found


def test_a_cpu_never_imports_triton():
    script = """
import sys, torch
from fairlead_engine.kernels.attention.choice import BACKENDS, choose_backend_name
from fairlead_engine.runner import ModelRunner
BACKENDS[choose_backend_name("auto", torch.device("cpu"))]()
BACKENDS["block_tables"]()
assert "triton" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
