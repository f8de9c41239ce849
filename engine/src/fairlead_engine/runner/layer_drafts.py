"""Drafts of a layer beside the model: an EAGLE-3 head, or the checkpoint's own layer for multi-token prediction.

The layer reads hidden states of the model and drafts token by token from there. It computes each token right behind the
model: its keys and values are wherever the model's are, chunk by chunk, after preemption, and in shared blocks. At a
block's last position they depend on the token behind the block, as its first computation had it: a sequence that shares
the prefix and goes on otherwise may get slightly worse drafts.
"""

import dataclasses
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fairlead_common.models.model_config import DecoderShape
from fairlead_engine.kernels.attention.backend import LayerCache
from fairlead_engine.kernels.attention.scoring import TreeRows
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.model.layers import ForwardInput
from fairlead_engine.runner.drafter import Frontier, draft_places, fill_dynamic, next_tokens, put_drafts
from fairlead_engine.runner.host_cache import HostCache
from fairlead_engine.runner.model_part import Computed, ModelPart
from fairlead_engine.runner.prepared_batch import prepare
from fairlead_engine.runner.sampler import Sampler
from fairlead_engine.runner.slot_tokens import NewTokens, SlotTokens
from fairlead_engine.runner.step_plan import StepPlan
from fairlead_engine.runner.tree_step import TreeStep
from fairlead_engine.speculative.tree_shape import DynamicTree
from fairlead_engine.types.batch import Batch, Numbers
from fairlead_engine.types.sequences import ScheduledSequence


class _TokensBehind(SlotTokens):
    """The model's tokens, each found one position before its own."""

    def __init__(self, tokens: SlotTokens) -> None:
        self._tokens = tokens

    def add(self, new: NewTokens) -> None:
        self._tokens.add(new)

    def at(self, slots: Tensor, positions: Tensor) -> Tensor:
        return self._tokens.at(slots, positions + 1)


class SeeingLayer(Protocol):
    """A layer beside the model that goes on from hidden states of the model's layers."""

    def reduce(self, tapped: Tensor) -> Tensor:
        """Inputs of `LayerDrafts.tapped_layers`, side by side [tokens, layers x hidden] → hidden states [tokens,
        hidden]."""

    def __call__(self, step: ForwardInput, hidden: Tensor, cache: LayerCache) -> Tensor:
        """Runs one step, with the tokens behind their positions and hidden [tokens, hidden] from `reduce` or an earlier
        step; returns the hidden states of its logit rows [rows, hidden]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [rows, hidden] → logits [rows, words of the model]."""


class LayerDrafts:
    """Drafts for one model, as a chain or a tree; of one rank, and launched operation by operation."""

    num_ahead = 1

    def __init__(
        self,
        layer: SeeingLayer,
        shape: DecoderShape,
        part: ModelPart,
        tapped_layers: tuple[int, ...],
        tree: DynamicTree | None,
    ) -> None:
        """`shape`: of the layer. `part`: the large model, which taps `tapped_layers` from here on."""
        self._tree = tree
        self._layer = layer
        self._hidden_size = shape.hidden_size
        self._backend = part.backend
        self._device = part.device
        self._layout = dataclasses.replace(
            part.layout,
            num_layers=1,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            shared_value_dim=shape.shared_value_dim,
            kv_shapes=(),
        )
        self.host: HostCache | None = None
        part.tapped_layers = tapped_layers

    @property
    def bytes_per_block(self) -> int:
        return self._layout.bytes_per_block

    def allocate(self, num_blocks: int, num_slots: int, blocks_per_slot: int, tokens: SlotTokens) -> None:
        self._cache = self._backend.allocate(self._layout, num_blocks)[0]
        self._tables: Any = self._backend.tables(self._layout, num_slots, blocks_per_slot)
        self._tokens = tokens
        self._tokens_behind = _TokensBehind(tokens)
        shape = num_slots, self._hidden_size
        self._hidden = torch.zeros(shape, dtype=self._layout.dtype, device=self._device)
        """By slot, the last computed hidden state, of the position before the last token."""

    def allocate_places(self, num_places: int) -> None:
        self.host = HostCache(self._backend, self._layout, [self._cache], num_places)

    def draft(self, batch: Batch, plan: StepPlan, sampler: Sampler) -> Tensor | None:
        self._tables.update(plan.new_blocks)
        items = [item for item in batch.chunks if item.drafts]
        if not items:
            return None
        self._tokens.add(plan.new_tokens)
        if self._tree is not None:
            return self._draft_trees(items, self._tree, sampler)
        left, hidden = items, self._hidden[self._on_device([item.sequence.slot for item in items])]
        for place in range(max(len(item.drafts) for item in items)):
            rows = [row for row, item in enumerate(left) if len(item.drafts) > place]
            left, hidden = [left[row] for row in rows], hidden[self._on_device(rows)]
            if place:
                hidden = self._go_on(left, place, hidden)
            following = next_tokens(items, place)
            slots, ends = self._on_device([(item.sequence.slot, item.known_end + place) for item in left]).T
            chosen = sampler.sample(self._layer.logits(hidden), following, self._tokens.rows)
            self._tokens.put(slots, ends, chosen.token_ids)
        return self._tokens.rows[draft_places(items, self._device)]

    def _draft_trees(self, items: list[ScheduledSequence], tree: DynamicTree, sampler: Sampler) -> Tensor:
        """Continued drafts lie in the layer's cache position by position, as a separate tree behind the known text; the
        rows of a tree's drafts have room for them (`fill_dynamic`)."""
        growth = _Growth(self._hidden[self._on_device([item.sequence.slot for item in items])].unsqueeze(1))

        def logits(front: Frontier) -> Tensor:
            if front.place:
                self._grow(growth, front)
            hidden = growth.hidden[front.rows] if front.place else growth.hidden
            width = hidden.shape[1]
            ends = [item.known_end + front.place for item in front.items for _ in range(width)]
            sequences = [item.sequence for item in front.items for _ in range(width)]
            shares = Batch([ScheduledSequence(sequence, 1, end) for sequence, end in zip(sequences, ends, strict=True)])
            found = sampler.changed(self._layer.logits(hidden.flatten(0, 1)), shares, self._tokens.rows)
            return found.view(len(front.items), width, -1)

        drafts = fill_dynamic(items, tree, logits)
        put_drafts(items, drafts, self._tokens)
        return drafts

    def _grow(self, growth: "_Growth", front: Frontier) -> None:
        """Computes the continued drafts, the parents of the next position's."""
        num_items, width = front.token_ids.shape
        num_before = (front.place - 1) * width
        knowns = np.array([item.known_end for item in front.items], np.int64)
        slots = np.array([item.sequence.slot for item in front.items], np.int64)
        columns = knowns[:, None] + num_before + np.arange(width)
        places = np.array((slots.repeat(width), columns.ravel(), (knowns + front.place - 2).repeat(width)))
        of_slots, positions, turned_by = to_device(places, self._device).unbind()
        self._tokens.put(of_slots, positions, front.token_ids.flatten())
        own = torch.arange(num_before, num_before + width, device=self._device)
        bits = (torch.ones_like(own) << own).expand(num_items, -1)
        if front.place > 1:
            bits = bits | growth.bits[front.rows].gather(1, front.came_from)
            before = growth.hidden[front.rows]
            hidden = before.gather(1, front.came_from.unsqueeze(-1).expand(-1, -1, before.shape[-1]))
        else:
            hidden = growth.hidden[front.rows].expand(-1, width, -1)
        limits = to_device(knowns - 1, self._device).repeat_interleave(width)
        ends, widths = knowns - 1 + num_before + width, np.full(num_items, width)
        trees = TreeStep(turned_by, TreeRows(limits, bits.flatten()))
        found = self._compute(StepPlan(slots, widths, ends, widths), hidden.flatten(0, 1), trees)
        growth.add(front.rows, found.view(num_items, width, -1), bits)

    def follow(self, plan: StepPlan, computed: Computed) -> Tensor | None:
        """Computes the step's tokens, with the choices behind them; later rows overwrite those of rejected drafts."""
        assert computed.tapped is not None, "the model hands out what its layers hold"
        own = StepPlan(plan.slots, plan.num_queries, plan.context_lens, plan.samples)
        return self._compute(own, self._layer.reduce(computed.tapped))

    def note(self, slots: Numbers, hidden: Tensor) -> None:
        self._hidden[to_device(slots, self._device)] = hidden

    def _go_on(self, items: list[ScheduledSequence], place: int, hidden: Tensor) -> Tensor:
        """[items, hidden] → the same, from the layer's own hidden states and the draft before `place`."""
        slots = np.array([item.sequence.slot for item in items], np.int64)
        ends = np.array([item.known_end + place - 1 for item in items], np.int64)
        ones = np.ones(len(items), np.int64)
        return self._compute(StepPlan(slots, ones, ends, ones), hidden)

    def _compute(self, plan: StepPlan, hidden: Tensor, trees: TreeStep | None = None) -> Tensor:
        """hidden [tokens, hidden] → [tokens that are chosen, hidden]."""
        step, _, _ = prepare(plan, self._backend, self._tables, self._tokens_behind, self._device, trees=trees)
        return self._layer(step, hidden, self._cache)

    def _on_device(self, numbers: list[int] | list[tuple[int, int]]) -> Tensor:
        return to_device(np.array(numbers, np.int64), self._device)


class _Growth:
    """The layer's state behind the drafts followed last, of all items."""

    def __init__(self, hidden: Tensor) -> None:
        """hidden [items, 1, hidden]: of the last known tokens."""
        self.hidden = hidden
        """[items, width, hidden]."""
        self.bits = torch.zeros(hidden.shape[:2], dtype=torch.int64, device=hidden.device)
        """int64 [items, width]: followed drafts on the path to each, itself included."""

    def add(self, rows: Tensor, hidden: Tensor, bits: Tensor) -> None:
        """Takes in new states of these items; other items are not followed any more."""
        if hidden.shape[1] != self.hidden.shape[1]:
            self.hidden = self.hidden.expand(-1, hidden.shape[1], -1).clone()
            self.bits = self.bits.expand(-1, hidden.shape[1]).clone()
        self.hidden[rows], self.bits[rows] = hidden, bits
