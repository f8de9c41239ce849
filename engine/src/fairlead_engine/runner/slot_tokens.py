"""The tokens of all running sequences, on the device: steps read them there, and add their choices."""

import msgspec
import numpy as np
import torch
from torch import Tensor

from fairlead_engine.kernels.chosen_tokens import put
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.types.batch import Numbers

_FEWEST_COLUMNS = 256


class NewTokens(msgspec.Struct, frozen=True, array_like=True):
    """Tokens that the host has and the device lacks."""

    places: list[tuple[int, int, int]]
    """Slot, first column and end column of each stretch."""
    token_ids: Numbers
    """int64, one stretch after the other."""
    num_columns: int
    """Columns that this step needs."""


class SlotTokens:
    """One row for each slot, with the known tokens of its sequence. Tokens from the host are sent once. A token chosen
    by a step is in its row before the host knows the token: the next step can begin with it."""

    def __init__(self, num_slots: int, most_tokens: int, device: torch.device, *, stays: bool = False) -> None:
        """`most_tokens`: of one sequence. `stays`: take all memory at once and keep its place; else it grows."""
        self._most_tokens = most_tokens
        self._device = device
        num_columns = most_tokens + 1 if stays else 0  # a step has room for the token that it may choose
        self.rows = torch.zeros((num_slots, num_columns), dtype=torch.int32, device=device)
        """[slots, columns]; undefined beyond a sequence's end."""

    def add(self, new: NewTokens) -> None:
        if new.num_columns > self.rows.shape[1]:
            self._widen(new.num_columns)
        if new.places:
            token_ids, first_id = to_device(new.token_ids.astype(np.int32), self._device), 0
            for slot, first, end in new.places:
                self.rows[slot, first:end] = token_ids[first_id : first_id + end - first]
                first_id += end - first

    def at(self, slots: Tensor, positions: Tensor) -> Tensor:
        """int32 [tokens] at `slots` and `positions`, int64 [tokens] each."""
        return self.rows[slots, positions]

    def put(self, slots: Tensor, positions: Tensor, token_ids: Tensor) -> None:
        """Writes a step's choices. A missing token becomes any token, as its sequence ends."""
        put(self.rows, slots, positions, token_ids)

    def _widen(self, num_columns: int) -> None:
        num_slots, before = self.rows.shape
        width = min(max(num_columns, 2 * before, _FEWEST_COLUMNS), max(num_columns, self._most_tokens))
        rows = torch.zeros((num_slots, width), dtype=torch.int32, device=self._device)
        rows[:, :before] = self.rows
        self.rows = rows
