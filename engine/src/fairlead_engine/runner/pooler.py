"""Vectors from hidden states: sums over what each step computes of a prompt, scaled to length 1 at its end."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fairlead_engine.sequences import ScheduledSequence


class Pooler:
    """Remembers the sums of prompts that are computed in chunks, until they are forgotten, and nothing else.

    A mean and a sum have the same direction, so that both ways of pooling are one.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def pool(self, items: Sequence[ScheduledSequence], hidden: Tensor) -> list[tuple[ScheduledSequence, Tensor]]:
        """Adds the hidden states [rows, hidden], item by item. The items that `embed` and their vectors [hidden],
        which are complete. Sums are float32."""
        first = 0
        vectors: list[tuple[ScheduledSequence, Tensor]] = []
        for item in items:
            request_id = item.sequence.request_id
            total = hidden[first : first + len(item.pools)].float().sum(0)
            first += len(item.pools)
            if (before := self._sums.get(request_id)) is not None:
                total = before + total
            self._sums[request_id] = total
            if item.embeds:
                vectors.append((item, torch.nn.functional.normalize(total, dim=0)))
        return vectors

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drops the sums of these requests."""
        for request_id in request_ids:
            self._sums.pop(request_id, None)
