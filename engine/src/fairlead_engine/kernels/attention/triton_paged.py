"""The attention backend for CUDA: a Triton kernel reads block tables in place, for any mixture of prompts and decodes.

Its cache is laid out as in `block_tables.py`, its reference. Imported only where chosen.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairlead_engine.kernels.attention.backend import CacheLayout, DeviceBatch, LayerCache, Numbers, StepView
from fairlead_engine.kernels.attention.block_tables import BlockCache, DeviceTables, table_metadata
from fairlead_engine.kernels.attention.paged_attention import Grid, PagedStep, paged_attention
from fairlead_engine.kernels.attention.scoring import Scoring
from fairlead_engine.kernels.norm_rope_store import HeadTurn
from fairlead_engine.kernels.norm_rope_store_kernel import norm_rope_store
from fairlead_engine.kernels.staging import to_device


class TileShape(NamedTuple):
    """A program's part of the work at a time."""

    most_heads: int | None
    """Most heads of a group side by side; None = all."""
    least_rows: int
    """Queries times heads."""
    tokens: int
    num_warps: int
    num_stages: int
    """`Grid.num_stages`."""


# Compiled for compute capability 9.0 with heads of 128, and latents of 512 beside 64, these keep everything in
# registers, read 16 bytes at a time and overlap loads with products (tests/engine/kernels/test_paged_attention.py).
DECODE_TILE, CHUNK_TILE = TileShape(None, 1, 64, 4, 3), TileShape(None, 128, 64, 8, 2)
LATENT_DECODE_TILE, LATENT_CHUNK_TILE = TileShape(16, 1, 32, 8, 2), TileShape(16, 32, 32, 8, 2)
"""For values that are a part of keys: one long key may serve all query heads; and for long heads."""
_LONGEST_IN_REGISTERS = 256
"""Most elements of a head for the tiles of usual heads."""
_PROGRAMS_PER_MULTIPROCESSOR = 3
"""Of decodes: as many as its shared memory has room for with 16 bits, its registers with 8."""
_SPLIT_TOKENS = 256
"""Least length of a split, beside which joining splits costs little."""
_MAX_SPLITS = 32
_MAX_PARTS = 2**24
"""Elements of rows times splits kept at a time: 64 MiB."""


class TritonPaged(BlockCache):
    """All sequences at once, with blocks read in place."""

    pads_contexts = False

    def __init__(self, num_programs: int | None = None) -> None:
        """`num_programs`: how many fill the device; None = all that run at a time, or one without CUDA."""
        if num_programs is None:
            has_cuda = torch.cuda.is_available()
            num_processors = torch.cuda.get_device_properties().multi_processor_count if has_cuda else 0
            num_programs = max(1, _PROGRAMS_PER_MULTIPROCESSOR * num_processors)
        self._num_programs = num_programs

    def prepare(self, batch: DeviceBatch, tables: DeviceTables) -> PagedStep:
        """Copies all numbers for attention alone to the device at once."""
        tables.update(batch.new_blocks)
        slots, num_queries, context_lens = batch.slots, batch.num_queries, batch.context_lens
        query_starts = np.concatenate(([0], num_queries.cumsum()))
        num_single = int(np.argmin(np.append(num_queries == 1, False)))  # decodes come first
        grids: list[Grid] = []
        tile_sequences: list[Numbers] = []
        tile_starts: list[Numbers] = []
        for first, end in ((0, num_single), (num_single, len(num_queries))):
            if first < end:
                starts = query_starts[first : end + 1]
                grid, owners, rows = self._grid(tables.layout, starts, context_lens[first:end], grids)
                grids.append(grid)
                tile_sequences.append(owners + first)
                tile_starts.append(rows)
        columns = [
            slots,
            context_lens,
            query_starts,
            np.concatenate(tile_sequences),
            np.concatenate(tile_starts),
        ]
        numbers = to_device(np.concatenate(columns).astype(np.int32), tables.layout.device)
        on_device = torch.split(numbers, [len(column) for column in columns])
        size, positions = tables.layout.block_size, batch.positions
        return PagedStep(
            table_rows=tables.rows,
            slots=on_device[0],
            context_lens=on_device[1],
            query_starts=on_device[2],
            tile_sequences=on_device[3],
            tile_starts=on_device[4],
            slot_mapping=tables.rows[batch.row_slots, positions // size] * size + positions % size,
            grids=tuple(grids),
            trees=batch.trees,
            batch=batch,
        )

    def prepare_decodes(self, slots: Tensor, context_lens: Tensor, tables: DeviceTables) -> PagedStep:
        """A tile for each sequence. Contexts are split as the longest possible; splits behind an end are idle."""
        size, num_sequences = tables.layout.block_size, len(slots)
        rows, positions = torch.arange(num_sequences + 1, dtype=torch.int32, device=slots.device), context_lens - 1
        longest = np.full(num_sequences, tables.rows.shape[1] * size)
        grid, _, _ = self._grid(tables.layout, np.arange(num_sequences + 1), longest, [])
        return PagedStep(
            table_rows=tables.rows,
            slots=slots.int(),
            context_lens=context_lens.int(),
            query_starts=rows,
            tile_sequences=rows[:-1],
            tile_starts=rows[:-1],
            slot_mapping=tables.rows[slots, positions // size] * size + positions % size,
            grids=(grid,),
        )

    def store(self, heads: Tensor, turn: HeadTurn, cache: LayerCache, metadata: PagedStep) -> Tensor:
        return norm_rope_store(heads, turn, cache.keys, cache.values, metadata.slot_mapping)

    def attend(self, query: Tensor, cache: LayerCache, metadata: PagedStep, scoring: Scoring) -> Tensor:
        value_dim = cache.shared_value_dim or query.shape[2]
        output = torch.empty((*query.shape[:2], value_dim), dtype=query.dtype, device=query.device)
        paged_attention(query, cache.keys, cache.values, output, metadata, scoring)
        return output

    def view(self, cache: LayerCache, metadata: PagedStep) -> StepView:
        assert metadata.batch is not None, "the host knows no contexts of a captured step"
        described = table_metadata(metadata.batch, metadata.table_rows, cache.keys.numbers.shape[1])
        return StepView(metadata.slot_mapping, described.groups)

    def _grid(
        self, layout: CacheLayout, query_starts: Numbers, context_lens: Numbers, before: list[Grid]
    ) -> tuple[Grid, Numbers, Numbers]:
        """Tiles of consecutive sequences, all with single queries or none: each tile's sequence and first row."""
        num_queries = np.diff(query_starts)
        is_decode = num_queries[0] == 1
        shape = _tile_shape(layout, is_decode=bool(is_decode))
        tile_heads = _side_by_side(layout.group, shape.most_heads)
        tile_rows = max(16, 1 << (max(tile_heads, shape.least_rows) - 1).bit_length())
        if is_decode:
            owners, within = np.arange(len(num_queries)), 0
        else:
            tiles_of = -(-num_queries // (tile_rows // tile_heads))
            owners = np.repeat(np.arange(len(num_queries)), tiles_of)
            within = np.arange(len(owners)) - np.repeat(tiles_of.cumsum() - tiles_of, tiles_of)
        num_rows = int(num_queries.sum())
        num_splits = -(-self._num_programs // (len(owners) * layout.num_heads // tile_heads))
        of_row = layout.num_heads * (layout.shared_value_dim or layout.longest_head)
        longest = min(_MAX_SPLITS, _MAX_PARTS // (num_rows * of_row), int(context_lens.max()) // _SPLIT_TOKENS)
        grid = Grid(
            first_tile=sum(each.num_tiles for each in before),
            num_tiles=len(owners),
            first_row=int(query_starts[0]),
            num_rows=num_rows,
            tile_heads=tile_heads,
            tile_rows=tile_rows,
            tile_tokens=shape.tokens,
            num_warps=shape.num_warps,
            num_stages=shape.num_stages,
            num_splits=1 << max(0, min(num_splits, longest).bit_length() - 1),
            is_of_decodes=bool(is_decode),
        )
        return grid, owners, query_starts[owners] + within * (tile_rows // tile_heads)


def _tile_shape(layout: CacheLayout, *, is_decode: bool) -> TileShape:
    if layout.shared_value_dim is None and layout.longest_head <= _LONGEST_IN_REGISTERS:
        return DECODE_TILE if is_decode else CHUNK_TILE
    return LATENT_DECODE_TILE if is_decode else LATENT_CHUNK_TILE


def _side_by_side(group: int, most: int | None) -> int:
    """The largest divisor of a group's size up to `most`."""
    return group if most is None else next(size for size in range(min(group, most), 0, -1) if group % size == 0)
