"""Every attention backend against attention written out token by token, through any block tables."""

import random
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.config import ATTENTION_BACKENDS, KV_CACHE_DTYPES
from fairlead_engine.errors import ConfigError
from fairlead_engine.kernels import dispatch
from fairlead_engine.kernels.attention import block_tables
from fairlead_engine.kernels.attention.backend import CacheLayout, DeviceBatch
from fairlead_engine.kernels.attention.choice import BACKENDS, choose_backend_name, choose_kv_dtype
from fairlead_engine.kernels.attention.scoring import PLAIN, Scoring
from fairlead_engine.kernels.attention.stored_heads import KV_DTYPES
from fairlead_engine_testing.devices import INTERPRETED, NEEDS_CUDA
from fairlead_engine_testing.kv_caches import as_stored, attention_written_out, device_batch, forward, spoil

CPU = torch.device("cpu")
HEAD_DIM = 8
ON_CPU = [pytest.param(name, marks=INTERPRETED) if name == "triton" else name for name in BACKENDS]
NUM_BLOCKS = 90


def make_layout(
    block_size: int,
    num_kv_heads: int = 2,
    device: torch.device = CPU,
    num_heads: int = 4,
    kv_dtype: torch.dtype | None = None,
    shared_value_dim: int | None = None,
) -> CacheLayout:
    return CacheLayout(
        num_layers=1,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=HEAD_DIM,
        block_size=block_size,
        dtype=torch.float32,
        device=device,
        kv_dtype=kv_dtype,
        shared_value_dim=shared_value_dim,
    )


@dataclass
class Conversation:
    """A sequence that attention sees in several steps: all its queries, keys and values, and how far it is."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    """No heads = they are the last elements of keys."""
    blocks: list[int]
    slot: int
    kv_dtype: torch.dtype | None = None
    shared_value_dim: int | None = None
    table: list[int] = field(default_factory=list)
    """Its first blocks, as far as it has got."""
    num_done: int = 0

    def grow(self, num_tokens: int, block_size: int) -> None:
        """Gives it blocks for so many tokens; in odd slots one more than that."""
        self.table += self.blocks[len(self.table) : -(-num_tokens // block_size) + self.slot % 2]

    def expected(self, start: int, end: int, scoring: Scoring = PLAIN) -> torch.Tensor:
        """As the definition says: [end - start, heads, head_dim]."""
        key = as_stored(self.key, self.kv_dtype)
        shared = self.shared_value_dim
        value = as_stored(self.value, self.kv_dtype) if shared is None else key[..., -shared:]
        seen = [range(token + 1) for token in range(start, end)]
        return attention_written_out(self.query[start:end], key, value, seen, scoring).float()


def make_conversations(lengths: list[int], layout: CacheLayout, scatter: bool) -> list[Conversation]:
    free = list(range(NUM_BLOCKS))
    if scatter:
        random.Random(len(lengths)).shuffle(free)
    found = []
    for length in lengths:
        slot = len(found)
        num_blocks = -(-length // layout.block_size) + slot % 2
        key, value = torch.randn(2, length, layout.num_kv_heads, HEAD_DIM)
        query, shared = torch.randn(length, layout.num_heads, HEAD_DIM), layout.shared_value_dim
        value = value if shared is None else value[:, :0]
        found.append(Conversation(query, key, value, free[:num_blocks], slot, layout.kv_dtype, shared))
        free = free[num_blocks:]
    return found


def run_step(backend, tables, cache, shares: list[tuple[Conversation, int]], scoring: Scoring = PLAIN) -> None:
    """One step computes so many further tokens of each; what comes out is the definition's."""
    ends = [each.num_done + num for each, num in shares]
    num_known = [len(each.table) for each, _ in shares]
    for (each, _), end in zip(shares, ends, strict=True):
        each.grow(end, tables.layout.block_size)
    slots, tables_now = [each.slot for each, _ in shares], [each.table for each, _ in shares]
    batch = device_batch(slots, [num for _, num in shares], ends, tables_now, num_known, tables.layout.device)
    parts = [slice(each.num_done, end) for (each, _), end in zip(shares, ends, strict=True)]
    query, key, value = (
        torch.cat([getattr(each, name)[part] for (each, _), part in zip(shares, parts, strict=True)])
        for name in ("query", "key", "value")
    )
    found = forward(backend, query, key, value, cache, backend.prepare(batch, tables), scoring)
    expected = torch.cat(
        [each.expected(part.start, part.stop, scoring) for (each, _), part in zip(shares, parts, strict=True)]
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for (each, _), end in zip(shares, ends, strict=True):
        each.num_done = end


def spoilt_cache(backend, layout):
    (cache,) = backend.allocate(layout, NUM_BLOCKS)
    spoil(cache)
    return cache


def move_away_and_back(backend, layout, cache):
    (spare,) = backend.allocate(replace(layout, device=torch.device("cpu"), num_layers=1), 2 * NUM_BLOCKS)
    blocks, places = torch.arange(NUM_BLOCKS), torch.arange(2 * NUM_BLOCKS - 1, -1, -2)
    backend.copy_blocks(layout, cache, spare, blocks, places)
    spoil(cache)
    backend.copy_blocks(layout, spare, cache, places, blocks)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)])
@pytest.mark.parametrize(
    "name", ["cpu_spans", "block_tables", pytest.param("triton", marks=(INTERPRETED, pytest.mark.compute))]
)
@settings(deadline=None, max_examples=30)
@given(
    block_size=st.integers(1, 4),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    lengths=st.lists(st.integers(1, 16), min_size=1, max_size=5),
    widths=st.lists(st.integers(0, 9), min_size=30, max_size=30),
    scatter=st.booleans(),
    moves=st.booleans(),
    bounds=st.sampled_from([(2**16, 2**25), (20, 100), (1, 1)]),
    kv_dtype=st.sampled_from(list(KV_DTYPES.values())),
    shared_value_dim=st.sampled_from([None, None, 6, 1]),
    scoring=st.builds(
        Scoring,
        st.sampled_from([0, 0, 1, 3, 100]),
        st.sampled_from([0.0, 0.0, 1.5]),
        st.sampled_from([None, 1.0]),
        st.booleans(),
    ),
)
def test_any_steps_equal_the_definition(
    name, device, block_size, heads, lengths, widths, scatter, moves, bounds, kv_dtype, shared_value_dim, scoring
):
    """Prefills in chunks of any widths beside decodes, until all tokens are done; others in the same slots follow. With
    `moves` every block is copied to another cache after each step, and back into a spoilt one."""
    num_heads, num_kv_heads = heads
    layout = make_layout(block_size, num_kv_heads, torch.device(device), num_heads, kv_dtype, shared_value_dim)
    if scoring.sinks is not None:
        scoring = scoring._replace(sinks=torch.linspace(-2.0, 2.0, num_heads, device=device))
    backend = BACKENDS[name]()
    tables = backend.tables(layout, len(lengths), NUM_BLOCKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_tables, "MAX_GATHERED", bounds[0])
        patch.setattr(block_tables, "MAX_SCORES", bounds[1])
        for some in (lengths, lengths[::-1]):
            cache = spoilt_cache(backend, layout)
            with layout.device:
                conversations = make_conversations(some, layout, scatter)
            while left := [each for each in conversations if each.num_done < len(each.query)]:
                shares = [(each, min(widths.pop() if widths else 9, len(each.query) - each.num_done)) for each in left]
                shares = sorted(((each, num) for each, num in shares if num), key=lambda share: share[1] > 1)
                if shares:
                    run_step(backend, tables, cache, shares, scoring)
                if moves:
                    move_away_and_back(backend, layout, cache)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, of NaN
@pytest.mark.parametrize("kv_dtype", KV_DTYPES.values(), ids=KV_DTYPES)
@pytest.mark.parametrize("name", ON_CPU)
def test_one_spoilt_sequence_spoils_no_other(name, kv_dtype):
    layout = make_layout(4, kv_dtype=kv_dtype)
    backend = BACKENDS[name]()
    spoilt, short, long = make_conversations([6, 5, 9], layout, scatter=True)
    spoilt.key.fill_(float("nan"))
    spoilt.value.fill_(float("inf"))
    shares = [(spoilt, 6), (short, 5), (long, 9)]
    batch = device_batch([0, 1, 2], [6, 5, 9], [6, 5, 9], [each.blocks for each, _ in shares])
    metadata = backend.prepare(batch, backend.tables(layout, 3, NUM_BLOCKS))
    query, key, value = (torch.cat([getattr(each, kind) for each, _ in shares]) for kind in ("query", "key", "value"))
    found = forward(backend, query, key, value, spoilt_cache(backend, layout), metadata)
    assert not found[:6].isfinite().any()
    torch.testing.assert_close(found[6:11], short.expected(0, 5), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[11:], long.expected(0, 9), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES.values(), ids=KV_DTYPES)
@pytest.mark.parametrize("name", ON_CPU)
def test_stored_tokens_take_their_slots_and_no_others(name, kv_dtype):
    layout = make_layout(4, kv_dtype=kv_dtype)
    backend = BACKENDS[name]()
    cache = spoilt_cache(backend, layout)
    (conversation,) = make_conversations([6], layout, scatter=True)
    run_step(backend, backend.tables(layout, 1, NUM_BLOCKS), cache, [(conversation, 6)])
    num_stored = 6 * layout.num_kv_heads * HEAD_DIM
    for heads in cache.stored:
        assert int(heads.floats(torch.float32).isfinite().sum()) == num_stored


@pytest.mark.parametrize("kv_dtype", KV_DTYPES.values(), ids=KV_DTYPES)
@pytest.mark.parametrize("name", ON_CPU)
def test_a_caches_size_is_what_its_layout_says(name, kv_dtype):
    layout = make_layout(4, num_kv_heads=3, num_heads=6, kv_dtype=kv_dtype)
    caches = BACKENDS[name]().allocate(layout, 7)
    assert sum(heads.nbytes for each in caches for heads in each.stored) == 7 * layout.bytes_per_block
    if kv_dtype is not None:
        assert layout.bytes_per_block == 2 * 4 * 3 * (HEAD_DIM + 4)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES.values(), ids=KV_DTYPES)
@pytest.mark.parametrize("name", ON_CPU)
def test_values_that_are_a_part_of_keys_take_no_room(name, kv_dtype):
    layout = make_layout(4, num_kv_heads=1, num_heads=6, kv_dtype=kv_dtype, shared_value_dim=6)
    caches = BACKENDS[name]().allocate(layout, 7)
    assert sum(heads.nbytes for each in caches for heads in each.stored) == 7 * layout.bytes_per_block
    assert 2 * layout.bytes_per_block == make_layout(4, 1, num_heads=6, kv_dtype=kv_dtype).bytes_per_block


def block_table_metadata(batch: DeviceBatch) -> block_tables.BlockTableMetadata:
    backend = block_tables.BlockTables()
    return backend.prepare(batch, backend.tables(make_layout(4), len(batch.slots), 5))


def test_block_tables_hold_what_a_kernel_needs():
    found = block_table_metadata(device_batch([1, 0], [1, 3], [6, 3], [[7, 2, 9], [5]]))
    assert [row[:num] for row, num in zip(found.block_tables.tolist(), (2, 1), strict=True)] == [[7, 2], [5]]
    assert found.context_lens.tolist() == [6, 3]
    assert found.query_starts.tolist() == [0, 1, 4]
    assert found.slot_mapping.tolist() == [9, 20, 21, 22]


def test_single_queries_are_not_padded_to_chunks():
    groups = block_table_metadata(
        device_batch([0, 1, 2, 3], [1, 1, 3, 2], [6, 2, 3, 2], [[7, 2], [1], [5], [4]])
    ).groups
    assert [tuple(group.visible.shape) for group in groups] == [(2, 1, 6), (2, 3, 3)]


def test_formats_of_the_cache_can_be_chosen_by_name(monkeypatch):
    assert tuple(KV_DTYPES) == KV_CACHE_DTYPES
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert choose_kv_dtype("int8", "triton", cuda) is torch.int8
    assert choose_kv_dtype("fp8", "block_tables", cuda) is choose_kv_dtype("fp8", "cpu_spans", CPU)
    with pytest.raises(ConfigError, match=r"kv-cache-dtype: fp8 needs .* 8.9, and this one has 8.0; choose int8"):
        choose_kv_dtype("fp8", "triton", cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert choose_kv_dtype("fp8", "triton", cuda) is torch.float8_e4m3fn


def test_every_backend_can_be_chosen_by_name():
    assert ("auto", *BACKENDS) == ATTENTION_BACKENDS
    assert choose_backend_name("auto", CPU) == "cpu_spans"
    assert choose_backend_name("block_tables", CPU) == "block_tables"


def test_cuda_gets_the_kernel_where_triton_is_installed(monkeypatch):
    assert choose_backend_name("auto", torch.device("cuda")) == "triton"
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(dispatch, "which", lambda name: None)
    assert choose_backend_name("auto", torch.device("cuda")) == "block_tables"
    with pytest.raises(ConfigError, match="attention-backend: Triton finds no C compiler: install gcc"):
        choose_backend_name("triton", torch.device("cuda"))
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None)
    assert choose_backend_name("auto", torch.device("cuda")) == "block_tables"
    with pytest.raises(ConfigError, match="attention-backend: Triton is not installed: pip install"):
        choose_backend_name("triton", torch.device("cuda"))


def test_the_kernel_is_refused_on_a_cpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="attention-backend: triton runs on CUDA alone; choose auto"):
        choose_backend_name("triton", CPU)
