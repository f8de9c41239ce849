"""The states of a recurrent model's sequences on the device: one for each slot, and snapshots."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlead_common.models.model_config import DecoderShape
from fairlead_engine.kernels.attention.backend import LayerCache
from fairlead_engine.kernels.recurrence import DraftedRows, StateCache, StateRows, advance
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.kernels.stretches import Stretch, Stretches
from fairlead_engine.model.recurrent import JointCache
from fairlead_engine.runner.step_plan import StepPlan
from fairlead_engine.types.batch import NO_SNAPSHOT, AcceptedDrafts


class SlotStates:
    """Rows of every recurrent layer's cache: slots, zeros, snapshots, in this order."""

    def __init__(
        self,
        config: DecoderShape,
        num_slots: int,
        num_snapshots: int,
        dtype: torch.dtype,
        device: torch.device,
        num_ranks: int = 1,
    ) -> None:
        """Of one of the ranks that divide the model, which have the same rows."""
        rows, self._zeros, self._device = num_slots + 1 + num_snapshots, num_slots, device
        assert config.state is not None, "the model is not recurrent"
        shape = config.state.of_ranks(num_ranks)
        self.caches = {
            layer: StateCache(
                torch.zeros(rows, shape.kernel_size - 1, shape.channels, dtype=dtype, device=device),
                torch.zeros(rows, shape.num_heads, shape.key_dim, shape.value_dim, device=device),
            )
            for layer in config.recurrent
        }
        """By layer."""
        self._drafted: list[int] = []
        """Slots of `DraftedRows` of the last step."""

    def begin(self, plan: StepPlan) -> None:
        """Before a step: accepted drafts of the last one, then states of slots that begin with this one."""
        if self._drafted:
            self._accept(plan.accepted)
        self._copy([(self._row(snapshot), slot) for slot, snapshot in plan.restored])

    def keep(self, plan: StepPlan) -> None:
        """Behind a step: snapshots of the sequences with one token."""
        number = _num_single(plan)
        self._copy([(slot, self._row(snapshot)) for slot, row, snapshot in plan.kept if row < number])

    def rows_of(self, plan: StepPlan, row_slots: Tensor) -> StateRows:
        """`row_slots` int64 [tokens], on the device."""
        number = _num_single(plan)
        drafted = self._drafted_rows(plan)
        kept = {row: self._row(snapshot) for _, row, snapshot in plan.kept}
        longer: list[Stretch] = []
        first = number
        columns = plan.slots, plan.num_queries, plan.samples
        for slot, num_rows, num_choices in zip(*(each[number:].tolist() for each in columns), strict=True):
            last = first + num_rows
            if num_choices > 1:  # with drafts
                first = last
                continue
            for row in (*sorted(row for row in kept if first <= row < last - 1), last - 1):
                longer.append(Stretch(slot, first, row + 1, kept.get(row)))
                first = row + 1
        return StateRows(row_slots[:number], Stretches.of(longer, self._device) if longer else None, drafted)

    def _drafted_rows(self, plan: StepPlan) -> DraftedRows | None:
        """Of the items with a choice behind each of several tokens."""
        where = np.flatnonzero(plan.samples > 1)
        if not len(where):
            return None
        where = where[np.argsort(-plan.samples[where], kind="stable")]
        lengths, slots = plan.samples[where], plan.slots[where]
        first = (plan.num_queries.cumsum() - plan.num_queries)[where]
        rounds = [first[lengths > place] + place for place in range(lengths[0])]
        numbers = to_device(np.concatenate((slots, *rounds)), self._device)
        on_device, *rows = torch.split(numbers, [len(slots), *map(len, rounds)])
        self._drafted = slots.tolist()
        return DraftedRows(on_device, tuple(rows))

    def _accept(self, accepted: list[AcceptedDrafts]) -> None:
        places = {slot: place for place, slot in enumerate(self._drafted)}
        for number in range(max((each.number for each in accepted), default=0) + 1):
            kept = [(each.slot, each.snapshot) for each in accepted if each.kept_behind == number]
            self._copy([(slot, self._row(snapshot)) for slot, snapshot in kept if snapshot is not None])
            going_on = [each.slot for each in accepted if each.number > number]
            if going_on:
                pairs = np.array([[places[slot] for slot in going_on], going_on], np.int64)
                picks, slots = to_device(pairs, self._device)
                for cache in self.caches.values():
                    advance(cache, number, picks, slots)
        for cache in self.caches.values():
            cache.held.clear()
        self._drafted = []

    def _row(self, snapshot: int) -> int:
        return self._zeros if snapshot == NO_SNAPSHOT else self._zeros + 1 + snapshot

    def _copy(self, pairs: list[tuple[int, int]]) -> None:
        if pairs:
            sources, targets = to_device(np.array(pairs, np.int64).T.copy(), self._device)
            for cache in self.caches.values():
                cache.copy(sources, targets)


def layer_caches(config: DecoderShape, attended: Sequence[LayerCache], states: SlotStates | None) -> list[Any]:
    """A cache for each layer: of `attended`, which has one for each layer that stores keys and values, of states, or
    both; None = the layer keeps nothing. A layer that reads what another one stores has the other one's."""
    keys = dict(zip(config.attending_layers, attended, strict=True))
    own = {} if states is None else states.caches
    both = {layer: JointCache(keys[layer], own[layer]) for layer in keys.keys() & own.keys()}
    return [(keys | own | both).get(config.kv_source(layer)) for layer in range(config.num_layers)]


def _num_single(plan: StepPlan) -> int:
    """Sequences with one token; they come first."""
    return int(np.argmin(np.append(plan.num_queries == 1, False)))
