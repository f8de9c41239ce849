"""A step's trees of guesses through every attention backend: a node is what it would be behind its own ancestors. And
images whose tokens see each other."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.kernels.attention.backend import CacheLayout
from fairlead_engine.kernels.attention.choice import BACKENDS
from fairlead_engine.kernels.attention.scoring import Scoring, TreeRows, ancestor_bits
from fairlead_engine.kernels.attention.stored_heads import KV_DTYPES
from fairlead_engine_testing.devices import INTERPRETED, NEEDS_CUDA
from fairlead_engine_testing.kv_caches import as_stored, attention_written_out, device_batch, forward, spoil

HEAD_DIM = 16
PLACES = [
    pytest.param("cpu_spans", "cpu"),
    pytest.param("block_tables", "cpu"),
    pytest.param("triton", "cpu", marks=INTERPRETED),
    pytest.param("block_tables", "cuda", marks=NEEDS_CUDA),
    pytest.param("triton", "cuda", marks=NEEDS_CUDA),
]
SEARCHED_PLACES = [
    pytest.param("triton", "cpu", marks=(INTERPRETED, pytest.mark.compute)) if p.values == ("triton", "cpu") else p
    for p in PLACES
]
"""For tests of many examples, of which the interpreter takes long."""


def ways(parents: list[int]) -> list[list[int]]:
    """Of each node, the root first, the nodes on the way to it and itself."""
    found = [[0]]
    for node, parent in enumerate(parents, start=1):
        found.append([*found[parent], node])
    return found


def random_tree(num_nodes: int, draw: random.Random) -> list[int]:
    """Parents of all nodes but the root."""
    return [draw.randrange(node) for node in range(1, num_nodes)]


def end_of_view(position: int, images: Sequence[range]) -> int:
    """Behind the last token that the token at `position` sees."""
    return next((image.stop for image in images if position in image), position + 1)


def seen_in_image(position: int, end: int, scoring: Scoring) -> list[int]:
    """Tokens before `end`, of which a window leaves out those before its own beginning."""
    first = position + 1 - scoring.width(position + 1) if scoring.window else 0
    return list(range(max(0, first), end))


def run_step(
    name: str,
    device: str,
    shares: list[tuple[int, list[int] | None, int]],
    *,
    block_size: int = 4,
    heads: tuple[int, int] = (4, 2),
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    shared_value_dim: int | None = None,
    scoring: Scoring,
    tolerance: float = 2e-5,
    seed: int = 0,
    images: Sequence[tuple[int, range]] = (),
) -> None:
    """Shares of sequences: tokens before the step, the parents of a tree (None = a chunk), rows. `images`: a share and
    positions in its sequence. What comes out is the definition's; then, of each tree, the way to its last node is moved
    to the front, and nothing else changes."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    layout = CacheLayout(
        num_layers=1, num_heads=heads[0], num_kv_heads=heads[1], head_dim=HEAD_DIM, block_size=block_size, dtype=dtype,
        device=torch.device(device), kv_dtype=kv_dtype, shared_value_dim=shared_value_dim,
    )  # fmt: skip
    backend = BACKENDS[name]()
    num_blocks = sum(-(-(before + rows) // block_size) for before, _, rows in shares) + 3
    (cache,) = backend.allocate(layout, num_blocks)
    spoil(cache)
    free = list(range(num_blocks))
    draw.shuffle(free)
    tables, limits, bits, expected, parts = [], [], [], [], []
    for index, (before, parents, rows) in enumerate(shares):
        tables.append([free.pop() for _ in range(-(-(before + rows) // block_size))])
        key, value = torch.randn(2, before + rows, heads[1], HEAD_DIM, generator=generator).to(device, dtype)
        query = torch.randn(rows, heads[0], HEAD_DIM, generator=generator).to(device, dtype)
        parts.append((query, key, value))
        if parents is None:
            ends = [
                end_of_view(before + row, [image for share, image in images if share == index]) for row in range(rows)
            ]
            limits += ends
            bits += [0] * rows
            seen = [seen_in_image(before + row, end, scoring) for row, end in enumerate(ends)]
        else:
            limits += [before] * rows
            bits += ancestor_bits(parents).tolist()
            seen = [[*range(before), *(before + node for node in way)] for way in ways(parents)]
        stored_key, stored_value = (as_stored(each, kv_dtype) for each in (key, value))
        if shared_value_dim is not None:
            stored_value = stored_key[..., -shared_value_dim:]
        written = scoring if parents is not None else scoring._replace(window=0)
        expected.append(attention_written_out(query, stored_key, stored_value, seen, written))
    backend_tables = backend.tables(layout, len(shares), max(map(len, tables)))
    slots, place = list(range(len(shares))), layout.device
    for index, (before, _, _) in enumerate(shares):  # what was computed earlier, one sequence at a time
        if before:
            _, key, value = (each[:before] for each in parts[index])
            query = key.repeat_interleave(heads[0] // heads[1], 1)
            batch = device_batch([index], [before], [before], [tables[index]], device=place)
            own = value if shared_value_dim is None else value[:, :0]
            forward(backend, query, key, own, cache, backend.prepare(batch, backend_tables), Scoring())
    num_rows, ends = [rows for _, _, rows in shares], [before + rows for before, _, rows in shares]
    known = [len(table) if before else 0 for table, (before, _, _) in zip(tables, shares, strict=True)]
    batch = device_batch(slots, num_rows, ends, tables, known, device=place)
    batch = replace(batch, trees=TreeRows(torch.tensor(limits, device=place), torch.tensor(bits, device=place)))
    metadata = backend.prepare(batch, backend_tables)
    query, key, value = (
        torch.cat([part[kind][-rows:] for part, rows in zip(parts, num_rows, strict=True)]) for kind in range(3)
    )
    value = value if shared_value_dim is None else value[:, :0]
    found = forward(backend, query, key, value, cache, metadata, scoring)
    torch.testing.assert_close(found.double(), torch.cat(expected), rtol=tolerance, atol=tolerance)
    check_moves(backend, cache, metadata, shares)


def rows_of(cache, metadata) -> list[torch.Tensor]:
    """What is stored of each row of the step, by part of the cache."""
    slots = metadata.slots if hasattr(metadata, "spans") else metadata.slot_mapping
    found = []
    for heads in cache.stored:
        flat, dim = (heads, 1) if hasattr(metadata, "spans") else (heads.flatten(0, 1), 0)
        found.append(flat.gather(dim, slots).floats(torch.float32).movedim(dim, 0).clone())
    return found


def check_moves(backend, cache, metadata, shares) -> None:
    before = rows_of(cache, metadata)
    num_rows = [rows for _, _, rows in shares]
    sources, targets = [], []
    for (_, parents, _), first in zip(shares, accumulate(num_rows, initial=0), strict=False):
        if parents is not None:
            way = ways(parents)[-1]
            sources += [first + node for node in way]
            targets += [first + place for place in range(len(way))]
    device = before[0].device
    wanted = [each.clone() for each in before]
    for each, old in zip(wanted, before, strict=True):
        each[targets] = old[sources]
    moves = torch.tensor([sources, targets], dtype=torch.int64, device=device)
    backend.move(cache, metadata, *moves)
    for each, expected in zip(rows_of(cache, metadata), wanted, strict=True):
        torch.testing.assert_close(each, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("name", "device"), SEARCHED_PLACES)
@settings(deadline=None, max_examples=20)
@given(
    block_size=st.integers(1, 4),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    decodes=st.integers(0, 2),
    trees=st.lists(st.tuples(st.integers(0, 30), st.integers(2, 20)), min_size=1, max_size=3),
    chunk=st.sampled_from([None, (0, 5), (9, 3)]),
    kv_dtype=st.sampled_from(list(KV_DTYPES.values())),
    shared_value_dim=st.sampled_from([None, None, 6]),
    window=st.sampled_from([0, 0, 1, 3, 12]),
    soft_cap=st.sampled_from([0.0, 1.5]),
    has_sinks=st.booleans(),
    is_aligned=st.booleans(),
    seed=st.integers(0, 999),
)
def test_a_node_sees_the_prefix_and_its_own_ancestors(
    name, device, block_size, heads, decodes, trees, chunk, kv_dtype, shared_value_dim, window, soft_cap, has_sinks,
    is_aligned, seed,
):  # fmt: skip
    """Beside decodes and chunks of prompts, and in any window: what is counted are nodes on the way."""
    draw = random.Random(seed)
    shares = [(draw.randrange(1, 20), None, 1) for _ in range(decodes)]
    shares += [(before, random_tree(rows, draw), rows) for before, rows in trees]
    shares += [] if chunk is None else [(chunk[0], None, chunk[1])]
    sinks = torch.linspace(-1.0, 2.0, heads[0], device=device) if has_sinks else None
    run_step(
        name, device, shares, block_size=block_size, heads=heads, kv_dtype=kv_dtype, shared_value_dim=shared_value_dim,
        scoring=Scoring(window, soft_cap, sinks, is_aligned), seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "device"), SEARCHED_PLACES)
@settings(deadline=None, max_examples=20)
@given(
    block_size=st.integers(1, 4),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    decodes=st.integers(0, 2),
    chunks=st.lists(
        st.tuples(st.integers(0, 30), st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), max_size=3)),
        min_size=1,
        max_size=3,
    ),
    tail=st.integers(0, 3),
    kv_dtype=st.sampled_from(list(KV_DTYPES.values())),
    window=st.sampled_from([0, 0, 1, 3, 12, 50]),
    is_aligned=st.booleans(),
    tree=st.sampled_from([None, (4, 7)]),
    seed=st.integers(0, 999),
)
def test_tokens_of_an_image_see_each_other_and_windows_begin_by_their_own_place(
    name, device, block_size, heads, decodes, chunks, tail, kv_dtype, window, is_aligned, tree, seed
):  # fmt: skip
    """Of several images with text between them, of which the first may have begun before the step."""
    draw = random.Random(seed)
    shares: list[tuple[int, list[int] | None, int]] = [(draw.randrange(1, 20), None, 1) for _ in range(decodes)]
    shares += [] if tree is None else [(tree[0], random_tree(tree[1], draw), tree[1])]
    images = []
    for before, parts in chunks:
        position = before
        for text, size in parts:
            earlier = draw.randrange(before + 1) if position == before and not text else 0
            images.append((len(shares), range(position + text - earlier, position + text + size)))
            position += text + size
        shares.append((before, None, position - before + tail + (position == before and not tail)))
    run_step(
        name, device, shares, block_size=block_size, heads=heads, kv_dtype=kv_dtype,
        scoring=Scoring(window, 0.0, None, is_aligned), seed=seed, images=images,
    )  # fmt: skip


@pytest.mark.matrix(2)
@pytest.mark.parametrize("shape", ["chain", "star", "random"])
@pytest.mark.parametrize("window", [0, 7])
@pytest.mark.parametrize(("name", "device"), PLACES)
def test_the_largest_tree_needs_all_bits(name, device, window, shape):
    draw = random.Random(3)
    parents = {"chain": list(range(63)), "star": [0] * 63, "random": random_tree(64, draw)}[shape]
    run_step(name, device, [(21, parents, 64), (5, parents[:2], 3)], scoring=Scoring(window))


@pytest.mark.parametrize(("name", "device"), [place for place in PLACES if place.values[0] == "triton"])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES.values(), ids=KV_DTYPES)
def test_half_precision_stays_near_the_definition(name, device, kv_dtype):
    parents = random_tree(40, random.Random(1))
    run_step(
        name, device, [(50, None, 1), (70, parents, 40)], block_size=16, heads=(8, 2), dtype=torch.float16,
        kv_dtype=kv_dtype, scoring=Scoring(), tolerance=2e-3,
    )  # fmt: skip
