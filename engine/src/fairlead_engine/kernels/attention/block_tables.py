"""Attention of all sequences at once, by block table: padded, masked, in plain torch on any device.

A step is four tensors, as in vLLM's paged attention (Kwon et al., 2023): block tables, context lengths, first row of
each sequence, and slot of each row. Kernels that read the cache in place take the same tensors and are compared with
this backend.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fairlead_engine.kernels.attention.backend import CacheLayout, DeviceBatch, LayerCache, NewBlocks, StepView
from fairlead_engine.kernels.attention.block_allocator import LRUBlocks
from fairlead_engine.kernels.attention.scoring import Group, Scoring, TreeRows, attend_scored, visible_tokens
from fairlead_engine.kernels.attention.stored_heads import StoredHeads
from fairlead_engine.kernels.norm_rope_store import HeadTurn, norm_rope_store
from fairlead_engine.kernels.staging import int64s, to_device

MAX_GATHERED = 2**16
"""Tokens, padding included, whose keys and values are gathered at a time: 256 MiB with 8 heads of 128 in bfloat16."""
MAX_SCORES = 2**25
"""Pairs of query and key, padding included, masked at a time: 32 MiB."""


class DeviceTables:
    """Every slot's block table on the device: a step sends only new blocks."""

    def __init__(self, layout: CacheLayout, num_slots: int, blocks_per_slot: int) -> None:
        self.layout = layout
        self.rows = torch.zeros((num_slots, blocks_per_slot), dtype=torch.int64, device=layout.device)
        """[slots, blocks]: undefined beyond a table's end."""

    def update(self, new_blocks: list[NewBlocks]) -> None:
        if not new_blocks:
            return
        width = self.rows.shape[1]
        places: list[int] = []
        blocks: list[int] = []
        for slot, first, new in new_blocks:
            places += range(slot * width + first, slot * width + first + len(new))
            blocks += new
        places_on_device, blocks_on_device = to_device(int64s(places + blocks).reshape(2, -1), self.layout.device)
        self.rows.view(-1).index_copy_(0, places_on_device, blocks_on_device)


@dataclass(frozen=True)
class BlockTableMetadata:
    """One step; all tensors are int64 on the cache's device."""

    batch: DeviceBatch
    block_size: int
    block_tables: Tensor
    """[sequences, blocks]: each context's blocks in order; undefined beyond them."""
    context_lens: Tensor
    """[sequences]: tokens that may be attended to."""
    query_starts: Tensor
    """[sequences + 1]: first row of each sequence, then the number of rows."""
    sequence_of: Tensor
    """[tokens]: sequence of each row."""
    positions: Tensor
    """[tokens]: position of each row in its sequence."""
    slot_mapping: Tensor
    """[tokens]: slot for each row's key and value."""
    trees: TreeRows | None = None
    """`DeviceBatch.trees`."""

    @cached_property
    def groups(self) -> list[Group]:
        """All sequences in order: single queries together, chunks beside them, each group as large as memory allows."""
        batch, found = self.batch, []
        starts = list(accumulate(batch.num_queries.tolist(), initial=0))
        for first, end in _stretches(batch):
            queries, context = int(batch.num_queries[first:end].max()), int(batch.context_lens[first:end].max())
            rows = slice(starts[first], starts[end])
            offset = torch.arange(rows.start, rows.stop, device=self.query_starts.device)
            sequence = self.sequence_of[rows]
            kept = (sequence - first) * queries + offset - self.query_starts[sequence]
            found.append(_group(self, slice(first, end), queries, context, kept))
        return found


class StoredRows(Protocol):
    """Metadata of a backend with `BlockCache`."""

    @property
    def slot_mapping(self) -> Tensor:
        """int64 [tokens]: slot for each row's key and value."""


class BlockCache:
    """The cache of backends that read block tables: a layer's keys and values [blocks, block_size, kv_heads, head_dim].
    Any free block is as good as another."""

    def allocate(self, layout: CacheLayout, num_blocks: int) -> list[LayerCache]:
        return layout.caches(lambda each: (num_blocks, layout.block_size, *each))

    def allocator(self, num_blocks: int) -> LRUBlocks:
        return LRUBlocks(num_blocks)

    def tables(self, layout: CacheLayout, num_slots: int, blocks_per_slot: int) -> DeviceTables:
        return DeviceTables(layout, num_slots, blocks_per_slot)

    def move(self, cache: LayerCache, metadata: StoredRows, sources: Tensor, targets: Tensor) -> None:
        for heads in cache.stored:
            heads.flatten(0, 1).move(0, metadata.slot_mapping[sources], metadata.slot_mapping[targets])

    def copy_blocks(
        self, layout: CacheLayout, source: LayerCache, target: LayerCache, sources: Tensor, targets: Tensor
    ) -> None:
        for heads, copies in zip(source.stored, target.stored, strict=True):
            heads.move(0, sources, targets, copies)


class BlockTables(BlockCache):
    """All sequences at once, padded and masked."""

    pads_contexts = True

    def prepare(self, batch: DeviceBatch, tables: DeviceTables) -> BlockTableMetadata:
        tables.update(batch.new_blocks)
        return table_metadata(batch, tables.rows, tables.layout.block_size)

    def prepare_decodes(self, slots: Tensor, context_lens: Tensor, tables: DeviceTables) -> BlockTableMetadata:
        """Pads every context to the longest possible one, and masks."""
        size, num_sequences = tables.layout.block_size, len(slots)
        longest = tables.rows.shape[1] * size
        block_tables, positions = tables.rows[slots], context_lens - 1
        query_starts = torch.arange(num_sequences + 1, device=slots.device)
        ones = np.ones(num_sequences, np.int64)
        return BlockTableMetadata(
            batch=DeviceBatch(np.empty(0, np.int64), ones, ones * longest, slots, positions, []),
            block_size=size,
            block_tables=block_tables,
            context_lens=context_lens,
            query_starts=query_starts,
            sequence_of=query_starts[:-1],
            positions=positions,
            slot_mapping=block_tables[query_starts[:-1], positions // size] * size + positions % size,
        )

    def store(self, heads: Tensor, turn: HeadTurn, cache: LayerCache, metadata: BlockTableMetadata) -> Tensor:
        return norm_rope_store(heads, turn, cache.keys, cache.values, metadata.slot_mapping)

    def attend(self, query: Tensor, cache: LayerCache, metadata: BlockTableMetadata, scoring: Scoring) -> Tensor:
        stored = [heads.flatten(0, 1) for heads in cache.attended]
        return cache.value_part(torch.cat([_attend(query, stored, group, scoring) for group in metadata.groups]))

    def view(self, cache: LayerCache, metadata: BlockTableMetadata) -> StepView:
        return StepView(metadata.slot_mapping, metadata.groups)


def table_metadata(batch: DeviceBatch, table_rows: Tensor, size: int) -> BlockTableMetadata:
    """Of a step whose tables, int64 [slots, blocks] of `size` tokens, are up to date."""
    device, num_rows = table_rows.device, int(batch.num_queries.sum())
    width = -(-int(batch.context_lens.max()) // size)
    per_sequence = np.array([batch.slots, batch.num_queries, batch.context_lens])
    slots, num_queries, context_lens = to_device(per_sequence, device)
    block_tables = table_rows[slots, :width]
    query_starts = pad(num_queries.cumsum(0), (1, 0))
    if num_rows == len(batch.slots):
        sequence_of = torch.arange(num_rows, device=device)
    else:
        sequence_of = torch.repeat_interleave(num_queries, output_size=num_rows)
    return BlockTableMetadata(
        batch=batch,
        block_size=size,
        block_tables=block_tables,
        context_lens=context_lens,
        query_starts=query_starts,
        sequence_of=sequence_of,
        positions=batch.positions,
        slot_mapping=block_tables[sequence_of, batch.positions // size] * size + batch.positions % size,
        trees=batch.trees,
    )


def _stretches(batch: DeviceBatch) -> Iterator[tuple[int, int]]:
    """Sequences [first, end) padded to one shape; a single sequence may exceed the bounds."""
    first, queries, context = 0, 0, 0
    shares = zip(batch.num_queries.tolist(), batch.context_lens.tolist(), strict=True)
    for index, (num_queries, context_len) in enumerate(shares):
        wider, longer, count = max(queries, num_queries), max(context, context_len), index + 1 - first
        too_large = count * longer > MAX_GATHERED or count * wider * longer > MAX_SCORES
        if first < index and (too_large or (num_queries == 1) != (queries == 1)):
            yield first, index
            first, wider, longer = index, num_queries, context_len
        queries, context = wider, longer
    if len(batch.num_queries):
        yield first, len(batch.num_queries)


def _group(metadata: BlockTableMetadata, sequences: slice, queries: int, context: int, kept: Tensor) -> Group:
    """Some sequences, padded to `queries` rows and `context` tokens."""
    starts, ends = metadata.query_starts[:-1][sequences, None], metadata.query_starts[1:][sequences, None]
    last_query, last_token = ends - starts - 1, metadata.context_lens[sequences, None] - 1
    query = torch.arange(queries, device=starts.device).minimum(last_query)
    token = torch.arange(context, device=starts.device)
    position = token.minimum(last_token)
    size = metadata.block_size
    blocks = metadata.block_tables[sequences].gather(1, position // size)
    rows, trees = starts + query, metadata.trees if queries > 1 else None
    own, slots = last_token - last_query + query, blocks * size + position % size
    if trees is None:
        return Group(rows, slots, token <= own.unsqueeze(2), kept, False)
    visible = visible_tokens(trees.limits[rows], trees.bits[rows], context)
    return Group(rows, slots, visible, kept, True, trees.ahead(rows, own))


def _attend(query: Tensor, stored: list[StoredHeads], group: Group, scoring: Scoring) -> Tensor:
    """[rows of the group, heads, head_dim], from query [tokens, heads, head_dim] and all slots' keys and values; where
    values are a part of keys, whole keys are mixed."""
    num_sequences, num_queries = group.rows.shape
    num_heads, num_kv_heads = query.shape[1], stored[0].numbers.shape[1]
    queries = query[group.rows].transpose(1, 2)  # [sequences, heads, queries, head_dim]
    context = [
        slab.gather(0, group.slots.flatten())
        .floats(query.dtype)
        .view(*group.slots.shape, num_kv_heads, -1)
        .transpose(1, 2)
        for slab in stored
    ]
    if num_queries == 1:
        # The query heads of a group act as queries of their key head, which is read only once.
        queries = queries.reshape(num_sequences, num_kv_heads, -1, query.shape[2])
    else:
        # Repeated by stride, not by copy, where all have the same.
        each = num_heads // num_kv_heads
        context = [part.unsqueeze(2).expand(-1, -1, each, -1, -1).flatten(1, 2) for part in context]
    if scoring.sinks is not None:
        heads_and_queries = (num_kv_heads, -1) if num_queries == 1 else (num_heads, 1)
        scoring = scoring._replace(sinks=scoring.sinks.view(*heads_and_queries, 1))
    visible, ahead = group.visible.unsqueeze(1), group.ahead
    if isinstance(ahead, Tensor):
        ahead = ahead[:, None, :, None]
    output = attend_scored(queries, context[0], context[-1], visible, scoring, has_trees=group.has_trees, ahead=ahead)
    return output.reshape(num_sequences, num_heads, num_queries, -1).transpose(1, 2).flatten(0, 1)[group.kept]
