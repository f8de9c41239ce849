"""The protocol of an attention backend, and its view of the cache and of a step.

The runner calls `allocate` and `tables` once and `prepare` once per step, each layer calls `store` and `attend`.
Requests and scheduling stay outside: a step is rows of tokens, some for each sequence.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fairlead_common.models.model_config import KvShape
from fairlead_common.models.weight_formats import block_bytes
from fairlead_engine.kernels.attention.block_allocator import BlockAllocator
from fairlead_engine.kernels.attention.scoring import Group, Scoring, TreeRows
from fairlead_engine.kernels.attention.stored_heads import LARGEST, StoredHeads
from fairlead_engine.kernels.norm_rope_store import HeadTurn

Numbers = npt.NDArray[np.int64]
"""Counts and indices on the host."""
Tables = TypeVar("Tables")
"""A backend's record of every slot's block table from step to step."""
Metadata = TypeVar("Metadata")
"""Result of `prepare`, for `store` and `attend`."""


@dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """The facts that determine every backend's cache. What follows from all layers is reckoned once: each step asks."""

    num_layers: int
    num_heads: int
    """Of queries."""
    num_kv_heads: int
    head_dim: int
    block_size: int
    """Tokens per block."""
    dtype: torch.dtype
    """Of activations, and of keys and values before storage."""
    device: torch.device
    kv_dtype: torch.dtype | None = None
    """Stored format of keys and values, one of `KV_DTYPES`; None = `dtype`."""
    shared_value_dim: int | None = None
    """Last elements of a key that are its value, not stored separately; None = values are as long as keys."""
    index_dim: int = 0
    """Elements of a token's index key."""
    indexed: frozenset[int] = frozenset()
    """Layers with an index key beside each key."""
    kv_shapes: tuple[KvShape, ...] = ()
    """Of each layer, where layers differ; empty = all have `num_kv_heads` of `head_dim`."""

    @cached_property
    def of_layers(self) -> tuple[KvShape, ...]:
        """Keys and values of each layer."""
        return self.kv_shapes or (KvShape(self.num_kv_heads, self.head_dim),) * self.num_layers

    @cached_property
    def group(self) -> int:
        """Query heads, side by side, that have one key head in every layer."""
        return gcd(*(self.num_heads // each.num_heads for each in self.of_layers))

    @cached_property
    def longest_head(self) -> int:
        return max(each.head_dim for each in self.of_layers)

    @property
    def bytes_per_block(self) -> int:
        """Keys and values of all layers, with their scales."""
        stored = self.kv_dtype or self.dtype
        return sum(
            block_bytes(
                num_alike, *each, self.block_size, stored.itemsize, has_scales=stored in LARGEST,
                has_values=self.shared_value_dim is None, num_indexed=len(self.indexed), index_dim=self.index_dim,
            )
            for each, num_alike in Counter(self.of_layers).items()
        )  # fmt: skip

    def caches(self, shape: Callable[[KvShape], tuple[int, ...]]) -> "list[LayerCache]":
        """Memory for keys and values of every layer, each of its shape, head_dim last."""

        def room(shape: tuple[int, ...]) -> StoredHeads:
            return StoredHeads.room(shape, self.kv_dtype or self.dtype, self.device)

        shared, found = self.shared_value_dim, []
        for layer, own in enumerate(map(shape, self.of_layers)):
            index = room((*own[:-1], self.index_dim)) if layer in self.indexed else None
            found.append(LayerCache(room(own), room(own) if shared is None else None, shared, index))
        return found


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values, in the backend's shape."""

    keys: StoredHeads
    values: StoredHeads | None
    """None = the last `shared_value_dim` elements of keys."""
    shared_value_dim: int | None = None
    """As in `CacheLayout`."""
    index: StoredHeads | None = None
    """Index keys, shaped like keys of one head; None = the layer chooses no keys by them."""

    @property
    def attended(self) -> tuple[StoredHeads, ...]:
        """Keys and values."""
        return (self.keys,) if self.values is None else (self.keys, self.values)

    @property
    def stored(self) -> tuple[StoredHeads, ...]:
        """All stored tensors."""
        return self.attended if self.index is None else (*self.attended, self.index)

    def value_part(self, mixed: Tensor) -> Tensor:
        """The values' part of attention's result, where whole keys [..., head_dim] were mixed instead of values."""
        return mixed if self.shared_value_dim is None else mixed[..., -self.shared_value_dim :]


class NewBlocks(NamedTuple):
    """Blocks appended to a slot's table."""

    slot: int
    first: int
    """Number of blocks before them; 0 = a new table."""
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """The sequences of one step in the order of their rows; sequence i has the next `num_queries[i]` rows."""

    slots: Numbers
    """Slot of each, constant while it runs."""
    num_queries: Numbers
    """Tokens computed in this step: the last ones of the context."""
    context_lens: Numbers
    """Visible tokens of each, this step's included."""
    row_slots: Tensor
    """int64 [tokens], on the device: the slot of each row,"""
    positions: Tensor
    """and its position in its sequence."""
    new_blocks: list[NewBlocks]
    """Blocks new in these slots' tables since the step before; tables cover contexts and may go beyond them."""
    trees: TreeRows | None = None
    """What rows of trees and of images see; None = every row sees everything up to itself."""


class StepView(NamedTuple):
    """Slots of one step, for attention in plain torch beside a backend's own. A slot counts tokens of the cache, whose
    tensors have one head, in the order of its memory."""

    slots: Tensor
    """int64 [tokens]: slot of each row."""
    groups: list[Group]
    """Slots that each row sees; all rows in order."""


class AttentionBackend(Protocol[Tables, Metadata]):
    """Causal grouped-query attention of a step's tokens to the cache. Keeps no state of a step or of a model."""

    def allocate(self, layout: CacheLayout, num_blocks: int) -> list[LayerCache]:
        """Allocates blocks 0 to `num_blocks - 1` of every layer; their contents are undefined until stored."""

    def allocator(self, num_blocks: int) -> BlockAllocator:
        """Chooses the next block of a table to suit this backend; all blocks are empty."""

    def tables(self, layout: CacheLayout, num_slots: int, blocks_per_slot: int) -> Tables:
        """Allocates empty block tables of `num_slots` sequences, each of at most `blocks_per_slot` blocks."""

    def prepare(self, batch: DeviceBatch, tables: Tables) -> Metadata:
        """What all layers of one step share; called once per step, on the host. Updates the tables."""

    def store(self, heads: Tensor, turn: HeadTurn, cache: LayerCache, metadata: Metadata) -> Tensor:
        """Takes heads [tokens, all heads, head_dim] of a fused projection: writes `norm_rope`'s keys and values to the
        cache, returns its queries [tokens, heads, head_dim]."""

    def attend(self, query: Tensor, cache: LayerCache, metadata: Metadata, scoring: Scoring) -> Tensor:
        """softmax(query · keys / sqrt(head_dim)) · values, with `scoring`; query and result [tokens, heads, head_dim],
        or, with values as a part of keys, result [tokens, heads, shared_value_dim].

        Query head h uses key head h // (heads / kv_heads). Slots outside a sequence's context never influence its
        result. Attention reads stored keys and values, of this step's own tokens too: with an 8-bit cache results do
        not depend on the division of a prompt into steps.
        """

    def view(self, cache: LayerCache, metadata: Metadata) -> StepView:
        """The slots of this step, the same in all layers. `cache`: of any layer."""

    def move(self, cache: LayerCache, metadata: Metadata, sources: Tensor, targets: Tensor) -> None:
        """Copies stored keys and values of rows, int64 [moves], to others' places; reads all before it writes."""

    def copy_blocks(
        self, layout: CacheLayout, source: LayerCache, target: LayerCache, sources: Tensor, targets: Tensor
    ) -> None:
        """Copies whole blocks of a layer's cache, int64 [blocks], to as many of another cache, as stored. Both were
        allocated by this backend with this layout, perhaps on different devices."""


@runtime_checkable
class CapturableBackend(AttentionBackend[Tables, Metadata], Protocol[Tables, Metadata]):
    """A backend whose decodes can be captured and replayed: the host looks at nothing that differs between them."""

    pads_contexts: ClassVar[bool]
    """Whether a captured decode takes as long as with the longest context, and launching is faster."""

    def prepare_decodes(self, slots: Tensor, context_lens: Tensor, tables: Tables) -> Metadata:
        """As `prepare`, for a step of one query per sequence, from int64 tensors [sequences] alone; the tables are up
        to date. Contexts may be as long as a table: every choice by length assumes the longest."""
