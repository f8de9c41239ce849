"""What attention is asked: the protocol of a backend, and what it is told of the cache and of a step.

The runner calls `allocate` and `tables` once and `prepare` once per step, each layer calls `store` and `attend`.
Requests and scheduling stay outside: a step is rows of tokens, and for each sequence how many of them are its own.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fairlead_engine.kernels.attention.block_allocator import BlockAllocator
from fairlead_engine.kernels.attention.scoring import Scoring, TreeRows
from fairlead_engine.kernels.attention.stored_heads import LARGEST, StoredHeads
from fairlead_engine.kernels.norm_rope_store import HeadTurn
from fairlead_protocol.models.weight_formats import block_bytes

Numbers = npt.NDArray[np.int64]
"""Counts and indices on the host."""
Tables = TypeVar("Tables")
"""What a backend keeps of every slot's block table from step to step: that backend's business."""
Metadata = TypeVar("Metadata")
"""What its `prepare` hands to its `store` and `attend`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """The facts that every backend's cache follows from."""

    num_layers: int
    num_heads: int
    """Of queries."""
    num_kv_heads: int
    head_dim: int
    block_size: int
    """Tokens per block."""
    dtype: torch.dtype
    """Of activations, and of keys and values before they are stored."""
    device: torch.device
    kv_dtype: torch.dtype | None = None
    """That keys and values are stored in, one of `KV_DTYPES`; None = `dtype`."""
    shared_value_dim: int | None = None
    """A value is so many of its key's last elements, and has no room of its own; None = it has, and is as long."""

    @property
    def bytes_per_block(self) -> int:
        """Keys and values of all layers, with their scales."""
        stored = self.kv_dtype or self.dtype
        return block_bytes(
            self.num_layers, self.num_kv_heads, self.head_dim, self.block_size, stored.itemsize,
            has_scales=stored in LARGEST, has_values=self.shared_value_dim is None,
        )  # fmt: skip

    def caches(self, shape: tuple[int, ...]) -> "list[LayerCache]":
        """Room for keys and values of every layer, each of this shape, head_dim last."""

        def room() -> StoredHeads:
            return StoredHeads.room(shape, self.kv_dtype or self.dtype, self.device)

        shared = self.shared_value_dim
        return [LayerCache(room(), room() if shared is None else None, shared) for _ in range(self.num_layers)]


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values, in the shape that the backend which allocated them chose."""

    keys: StoredHeads
    values: StoredHeads | None
    """None = they are a part of keys: the last"""
    shared_value_dim: int | None = None
    """elements of each, as many as this."""

    @property
    def stored(self) -> tuple[StoredHeads, ...]:
        """All that it holds."""
        return (self.keys,) if self.values is None else (self.keys, self.values)

    def value_part(self, mixed: Tensor) -> Tensor:
        """What attention found, where whole keys [..., head_dim] were mixed for want of values: their part of it."""
        return mixed if self.shared_value_dim is None else mixed[..., -self.shared_value_dim :]


class NewBlocks(NamedTuple):
    """Blocks that came to a slot's table."""

    slot: int
    first: int
    """How many are before them; 0 = the table is another sequence's, or begins anew."""
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """The sequences of one step in the order of their rows; sequence i has the next `num_queries[i]` rows."""

    slots: Numbers
    """Where each is kept as long as it runs: no two sequences share one."""
    num_queries: Numbers
    """Tokens computed in this step: the last ones of the context."""
    context_lens: Numbers
    """Tokens that may be attended to, those of this step included."""
    row_slots: Tensor
    """int64 [tokens], on the device: the slot of each row,"""
    positions: Tensor
    """and its position in its sequence."""
    new_blocks: list[NewBlocks]
    """What came to the tables of these slots since the step before; tables cover contexts and may go beyond them."""
    trees: TreeRows | None = None
    """What rows see, where that is not all up to their own; of rows that are their sequence's only one it is."""


class AttentionBackend(Protocol[Tables, Metadata]):
    """Causal grouped-query attention of a step's tokens to the cache. Holds no state of a step or of a model."""

    def allocate(self, layout: CacheLayout, num_blocks: int) -> list[LayerCache]:
        """Memory for blocks 0 to `num_blocks - 1` of every layer; what it holds is undefined until it is stored."""

    def allocator(self, num_blocks: int) -> BlockAllocator:
        """Which free block a table gets next, as suits this backend; all blocks are empty."""

    def tables(self, layout: CacheLayout, num_slots: int, blocks_per_slot: int) -> Tables:
        """Room for the block tables of as many sequences, each of at most so many blocks; nothing is in them."""

    def prepare(self, batch: DeviceBatch, tables: Tables) -> Metadata:
        """What all layers of one step share; called once per step, on the host. Brings the tables up to date."""

    def store(self, heads: Tensor, turn: HeadTurn, cache: LayerCache, metadata: Metadata) -> Tensor:
        """Takes heads [tokens, all heads, head_dim] of a fused projection: `norm_rope`'s keys and values go into the
        cache, its queries [tokens, heads, head_dim] come back."""

    def attend(self, query: Tensor, cache: LayerCache, metadata: Metadata, scoring: Scoring) -> Tensor:
        """softmax(query · keys / sqrt(head_dim)) · values, with what `scoring` says; query [tokens, heads, head_dim],
        and so is the result, but for values that are a part of keys: [tokens, heads, shared_value_dim].

        Query head h uses key head h // (heads / kv_heads). Slots outside a sequence's context are never used for it.
        What is attended to is what was stored, of this step's own tokens too: so where that is 8 bits, what a token
        sees does not depend on how a prompt is divided into steps.
        """

    def move(self, cache: LayerCache, metadata: Metadata, sources: Tensor, targets: Tensor) -> None:
        """Copies what rows of a step have stored, int64 [moves], to where others have, as it is there; what is copied
        is what was there before the call."""

    def copy_blocks(
        self, layout: CacheLayout, source: LayerCache, target: LayerCache, sources: Tensor, targets: Tensor
    ) -> None:
        """Copies whole blocks of a layer's cache, int64 [blocks], to as many of another cache, as they are stored. Both
        were allocated by this backend with this layout, be it on another device."""


@runtime_checkable
class CapturableBackend(AttentionBackend[Tables, Metadata], Protocol[Tables, Metadata]):
    """A backend whose decodes can be captured and repeated: the host looks at nothing in which two of them differ."""

    pads_contexts: ClassVar[bool]
    """Whether a captured decode takes as long as the longest context would, so that launching it is better."""

    def prepare_decodes(self, slots: Tensor, context_lens: Tensor, tables: Tables) -> Metadata:
        """As `prepare`, for a step of one query of each sequence, from int64 tensors [sequences] alone; the tables are
        up to date already. Contexts may be as long as a table, so whatever is chosen by length is chosen for that."""
