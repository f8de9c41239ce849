"""A linear layer beside which each row may have a product of its own adapter's: x Aᵀ Bᵀ, of low rank.

The adapters of all slots lie side by side, so that their products are two for all rows, however many adapters these
have; columns that are another adapter's are cleared in between. Their number is that of slots times ranks, small beside
a weight's. Many adapters in one batch: Punica (arXiv 2310.18547), S-LoRA (arXiv 2311.03285).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.model.linear import Linear


class AdaptedRows(NamedTuple):
    """Which rows of a product have adapters."""

    rows: Tensor | None
    """int64 [adapted]; None = all."""
    others: Tensor
    """bool [adapted, 1, slots x rank]: the columns that are not those of the row's own adapter."""


class Adapting(Protocol):
    """Who knows the rows of the product that is computed next."""

    now: AdaptedRows | None
    """None = none of them has an adapter."""


class AdaptedLinear:
    """For several projections of one input, which have adapters each, as one product."""

    def __init__(
        self,
        base: Linear,
        in_features: int,
        out_features: Sequence[int],
        num_slots: int,
        rank: int,
        adapting: Adapting,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`out_features`: of each projection, as they lie side by side."""
        self.copies_weight = base.copies_weight
        self._base = base
        self._adapting = adapting
        self._rank = rank
        self._down = torch.zeros(len(out_features), num_slots, rank, in_features, dtype=dtype, device=device)
        self._up = [torch.zeros(num_slots, rank, size, dtype=dtype, device=device) for size in out_features]
        self._rows = self._down.view(-1, in_features)
        ends = torch.tensor([0, *out_features]).cumsum(0).tolist()
        self._places = [
            (slice(first, end), up.flatten(0, 1)) for first, end, up in zip(ends[:-1], ends[1:], self._up, strict=True)
        ]

    @property
    def num_bytes(self) -> int:
        """That the adapters of all slots take."""
        return self._down.nbytes + sum(up.nbytes for up in self._up)

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, in_features] → [rows, out_features]."""
        product = self._base(x)
        if (adapted := self._adapting.now) is None:
            return product
        rows, others = adapted
        narrow = functional.linear(x if rows is None else x[rows], self._rows)
        # Not multiplied by 0: a number that is none must not reach the rows of others.
        narrow = narrow.view(len(narrow), len(self._places), -1).masked_fill(others, 0.0)
        for index, (place, up) in enumerate(self._places):
            if rows is None:
                product[:, place].addmm_(narrow[:, index], up)
            else:
                product[:, place].index_add_(0, rows, narrow[:, index] @ up)
        return product

    def clear(self, slot: int) -> None:
        """Nothing of a slot counts any more: zeros before `_up` make all behind them zeros."""
        self._down[:, slot].zero_()

    def put(self, part: int, slot: int, down: Tensor, up: Tensor) -> None:
        """Of one projection; `down` and `up` are [rank, features], and scaled. After `clear`."""
        self._down[part, slot, : len(down)].copy_(down, non_blocking=True)
        self._up[part][slot, : len(up)].copy_(up, non_blocking=True)
