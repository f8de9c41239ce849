"""The states of a recurrent model's sequences on the device: one for each slot, and snapshots."""

import numpy as np
import torch
from torch import Tensor

from fairlead_common.models.model_config import DecoderShape
from fairlead_engine.kernels.recurrence import StateCache, StateRows, Stretch
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.runner.step_plan import StepPlan
from fairlead_engine.types.batch import NO_SNAPSHOT


class SlotStates:
    """Rows of every recurrent layer's cache: slots, zeros, snapshots, in this order."""

    def __init__(
        self, config: DecoderShape, num_slots: int, num_snapshots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        rows, self._zeros, self._device = num_slots + 1 + num_snapshots, num_slots, device
        shape = config.state
        assert shape is not None, "the model is not recurrent"
        self.caches = {
            layer: StateCache(
                torch.zeros(rows, shape.kernel_size - 1, shape.channels, dtype=dtype, device=device),
                torch.zeros(rows, shape.num_heads, shape.key_dim, shape.value_dim, device=device),
            )
            for layer in config.recurrent
        }
        """By layer."""

    def restore(self, plan: StepPlan) -> None:
        """Before a step: states of slots that begin with it."""
        self._copy([(self._row(snapshot), slot) for slot, snapshot in plan.restored])

    def keep(self, plan: StepPlan) -> None:
        """Behind a step: snapshots of the sequences with one token."""
        number = _num_single(plan)
        self._copy([(slot, self._row(snapshot)) for slot, row, snapshot in plan.kept if row < number])

    def rows_of(self, plan: StepPlan, row_slots: Tensor) -> StateRows:
        """`row_slots` int64 [tokens], on the device."""
        number = _num_single(plan)
        kept = {row: self._row(snapshot) for _, row, snapshot in plan.kept}
        longer: list[Stretch] = []
        first = number
        for slot, num_rows in zip(plan.slots[number:].tolist(), plan.num_queries[number:].tolist(), strict=True):
            last = first + num_rows
            for row in (*sorted(row for row in kept if first <= row < last - 1), last - 1):
                longer.append(Stretch(slot, first, row + 1, kept.get(row)))
                first = row + 1
        return StateRows(row_slots[:number], tuple(longer))

    def _row(self, snapshot: int) -> int:
        return self._zeros if snapshot == NO_SNAPSHOT else self._zeros + 1 + snapshot

    def _copy(self, pairs: list[tuple[int, int]]) -> None:
        if pairs:
            sources, targets = to_device(np.array(pairs, np.int64).T.copy(), self._device)
            for cache in self.caches.values():
                cache.copy(sources, targets)


def _num_single(plan: StepPlan) -> int:
    """Sequences with one token; they come first."""
    return int(np.argmin(np.append(plan.num_queries == 1, False)))
