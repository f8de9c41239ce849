"""Attention to chosen keys against its definition, written out token by token, on every backend's cache."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairlead_engine.kernels.attention import chosen_keys
from fairlead_engine.kernels.attention.backend import CacheLayout
from fairlead_engine.kernels.attention.choice import BACKENDS
from fairlead_engine.kernels.attention.chosen_keys import IndexQuery, attend_chosen, choose_keys, flat_slots
from fairlead_engine.kernels.attention.scoring import PLAIN, TreeRows, ancestor_bits
from fairlead_engine.kernels.attention.stored_heads import KV_DTYPES
from fairlead_engine_testing.devices import INTERPRETED
from fairlead_engine_testing.kv_caches import as_stored, attention_written_out, device_batch, side_by_side, spoil

HEAD_DIM, VALUE_DIM = 6, 4
ON_CPU = [pytest.param(name, marks=INTERPRETED) if name == "triton" else name for name in BACKENDS]


def make_layout(block_size: int, index_dim: int, kv_dtype: torch.dtype | None = None, num_layers: int = 1):
    return CacheLayout(
        num_layers=num_layers, num_heads=3, num_kv_heads=1, head_dim=HEAD_DIM, block_size=block_size,
        dtype=torch.float32, device=torch.device("cpu"), kv_dtype=kv_dtype, shared_value_dim=VALUE_DIM,
        index_dim=index_dim, indexed=frozenset({0}),
    )  # fmt: skip


def best(query: Tensor, weights: Tensor, keys: Tensor, seen: list[int], most: int) -> list[int]:
    """Of the tokens that one row sees: those of the largest scores, and of equal scores the earlier."""
    products = (query.double() @ keys[seen].double().T).clamp_min(0)
    scores = (weights.double() @ products).tolist()
    order = sorted(range(len(seen)), key=lambda place: (-scores[place], place))
    return sorted(seen[place] for place in order[:most])


def whole(generator: torch.Generator, *shape: int) -> Tensor:
    """Small whole numbers, whose products are exact and often equal."""
    return torch.randint(-2, 3, shape, generator=generator).float()


class Text:
    """A sequence with its vectors, and the tokens that each row of it sees."""

    def __init__(self, num_tokens: int, index_heads: int, index_dim: int, generator: torch.Generator) -> None:
        self.query = torch.randn(num_tokens, 3, HEAD_DIM, generator=generator)
        self.key = torch.randn(num_tokens, 1, HEAD_DIM, generator=generator)
        self.index_query = whole(generator, num_tokens, index_heads, index_dim)
        self.index_weights = whole(generator, num_tokens, index_heads)
        self.index_key = whole(generator, num_tokens, index_dim)
        self.seen = [list(range(token + 1)) for token in range(num_tokens)]

    def expected(self, rows: slice, most: int, kv_dtype: torch.dtype | None) -> Tensor:
        keys, stored = as_stored(self.index_key, kv_dtype), as_stored(self.key, kv_dtype)
        chosen = [
            best(self.index_query[row], self.index_weights[row], keys, self.seen[row], most)
            for row in range(rows.start, rows.stop)
        ]
        return attention_written_out(self.query[rows], stored, stored[..., -VALUE_DIM:], chosen).float()


def run(backend: Any, cache: Any, metadata: Any, parts: list[tuple[Text, slice]], most: int) -> Tensor:
    """A layer's work in a step."""

    def all_of(name: str) -> Tensor:
        return torch.cat([getattr(text, name)[rows] for text, rows in parts])

    query = backend.store(*side_by_side(all_of("query"), all_of("key"), all_of("key")[:, :0]), cache, metadata)
    view, index = backend.view(cache, metadata), flat_slots(cache.index)
    index.put(0, view.slots, all_of("index_key"))
    chosen = choose_keys(IndexQuery(all_of("index_query"), all_of("index_weights")), index, view.groups, most)
    if chosen is None:
        return backend.attend(query, cache, metadata, PLAIN)
    return attend_chosen(query, cache, chosen)


@pytest.mark.parametrize(
    "name", ["cpu_spans", "block_tables", pytest.param("triton", marks=(INTERPRETED, pytest.mark.compute))]
)
@settings(deadline=None, max_examples=40)
@given(
    block_size=st.integers(1, 4),
    index=st.sampled_from([(1, 1), (1, 3), (4, 2), (3, 8)]),
    lengths=st.lists(st.integers(1, 16), min_size=1, max_size=4),
    widths=st.lists(st.integers(1, 9), min_size=16, max_size=16),
    most=st.integers(1, 18),
    bounds=st.sampled_from([(2**24, 2**16), (40, 7), (1, 1)]),
    kv_dtype=st.sampled_from(list(KV_DTYPES.values())),
    seed=st.integers(0, 9),
)
def test_any_steps_attend_to_the_best_keys(name, block_size, index, lengths, widths, most, bounds, kv_dtype, seed):
    """Prompts in chunks of any widths beside decodes, through scattered blocks of a spoilt cache."""
    generator, layout = torch.Generator().manual_seed(seed), make_layout(block_size, index[1], kv_dtype)
    backend = BACKENDS[name]()
    texts = [Text(length, *index, generator) for length in lengths]
    for text in texts if kv_dtype is not None else ():  # rounded whole numbers would be nearly equal
        text.index_key = torch.randn(text.index_key.shape, generator=generator)
    free = list(range(64))
    random.Random(seed).shuffle(free)
    blocks = [[free.pop() for _ in range(-(-length // block_size))] for length in lengths]
    (cache,) = backend.allocate(layout, 64)
    spoil(cache)
    tables, done = backend.tables(layout, len(texts), 16), [0] * len(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chosen_keys, "MAX_PRODUCTS", bounds[0])
        patch.setattr(chosen_keys, "MAX_GATHERED", bounds[1])
        while left := [slot for slot, text in enumerate(texts) if done[slot] < len(text.query)]:
            shares = [(slot, min(widths.pop() if widths else 9, lengths[slot] - done[slot])) for slot in left]
            shares.sort(key=lambda share: share[1] > 1)  # as runners have it
            slots, ends = [slot for slot, _ in shares], [done[slot] + num for slot, num in shares]
            known = [len(blocks[slot]) if done[slot] else 0 for slot in slots]
            batch = device_batch(slots, [num for _, num in shares], ends, [blocks[slot] for slot in slots], known)
            parts = [(texts[slot], slice(done[slot], end)) for slot, end in zip(slots, ends, strict=True)]
            found = run(backend, cache, backend.prepare(batch, tables), parts, most)
            expected = torch.cat([text.expected(rows, most, kv_dtype) for text, rows in parts])
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            for slot, end in zip(slots, ends, strict=True):
                done[slot] = end


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("most", [1, 3, 6])
def test_guesses_of_a_tree_choose_among_what_they_see(name, most):
    parents, before = [0, 0, 1, 2, 2], 7
    text = Text(before + 1 + len(parents), 2, 3, torch.Generator().manual_seed(4))
    for node in range(1 + len(parents)):
        way, at = [], node
        while at:
            way.append(at)
            at = parents[at - 1]
        text.seen[before + node] = [*range(before), before, *(before + each for each in sorted(way))]
    layout, backend = make_layout(2, 3), BACKENDS[name]()
    (cache,) = backend.allocate(layout, 9)
    spoil(cache)
    tables, table = backend.tables(layout, 1, 9), [7, 2, 5, 0, 8, 1, 3]
    first = slice(0, before)
    run(backend, cache, backend.prepare(device_batch([0], [before], [before], [table]), tables), [(text, first)], most)
    num_rows = 1 + len(parents)
    batch = device_batch([0], [num_rows], [before + num_rows], [table], [len(table)])
    trees = TreeRows(torch.full((num_rows,), before), torch.from_numpy(ancestor_bits(parents)))
    rows = slice(before, before + num_rows)
    found = run(backend, cache, backend.prepare(replace(batch, trees=trees), tables), [(text, rows)], most)
    torch.testing.assert_close(found, text.expected(rows, most, None), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ON_CPU)
def test_a_spoilt_sequence_shows_and_spoils_no_other(name):
    generator, layout, backend = torch.Generator().manual_seed(1), make_layout(4, 3), BACKENDS[name]()
    spoilt, other = Text(9, 2, 3, generator), Text(8, 2, 3, generator)
    for vectors in (spoilt.query, spoilt.key, spoilt.index_query, spoilt.index_key):
        vectors.fill_(float("nan"))
    (cache,) = backend.allocate(layout, 8)
    spoil(cache)
    batch = device_batch([0, 1], [9, 8], [9, 8], [[5, 0, 3], [2, 7]])
    metadata = backend.prepare(batch, backend.tables(layout, 2, 4))
    found = run(backend, cache, metadata, [(spoilt, slice(0, 9)), (other, slice(0, 8))], 4)
    assert not found[:9].isfinite().any()
    torch.testing.assert_close(found[9:], other.expected(slice(0, 8), 4, None), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES.values(), ids=KV_DTYPES)
@pytest.mark.parametrize("name", ON_CPU)
def test_index_keys_take_the_room_that_the_layout_says_and_move_along(name, kv_dtype):
    layout = make_layout(4, 5, kv_dtype, num_layers=3)
    backend = BACKENDS[name]()
    caches = backend.allocate(layout, 7)
    assert [each.index is not None for each in caches] == [True, False, False]
    assert sum(heads.nbytes for each in caches for heads in each.stored) == 7 * layout.bytes_per_block
    without = replace(layout, indexed=frozenset())
    each = 4 if kv_dtype is None else 1
    assert layout.bytes_per_block - without.bytes_per_block == 4 * (5 * each + (0 if kv_dtype is None else 4))
    copies = backend.allocate(layout, 7)
    index, copied = (flat_slots(one[0].index) for one in (caches, copies))
    keys = torch.randn(28, 5)
    index.put(0, torch.arange(28), keys)
    backend.copy_blocks(layout, caches[0], copies[0], torch.tensor([6, 1]), torch.tensor([0, 4]))
    wanted = index.floats(torch.float32).view(7, 4, 5)[[6, 1]]
    assert torch.equal(copied.floats(torch.float32).view(7, 4, 5)[[0, 4]], wanted)
