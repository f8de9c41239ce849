"""Products with adapters of all slots: small products beside a layer's own, for the rows of a step that use them.

The adapters of all slots lie side by side: x Aᵀ Bᵀ is two products for all rows, with any number of adapters; columns
of other adapters are cleared in between. The columns, slots times ranks, are few beside a weight's. Many adapters in
one batch: Punica (arXiv 2310.18547), S-LoRA (arXiv 2311.03285).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.model.linear import Linear


class AdaptedRows(NamedTuple):
    """Rows of a product with adapters."""

    rows: Tensor | None
    """int64 [adapted]; None = all."""
    others: Tensor
    """bool [adapted, 1, slots x rank]: the columns of adapters other than the row's."""
    slots: Tensor
    """int64 [adapted]: the slot of each row's adapter; below 0 = none."""


class Adapting(Protocol):
    """Knows the rows of the next product."""

    now: AdaptedRows | None
    """None = none of them has an adapter."""


class SlotTensors:
    """The adapters of all slots for several projections of one input."""

    def __init__(self, down: Tensor, up: Sequence[Tensor]) -> None:
        """`down` [projections, slots, rank, in_features]; `up`: for each projection [slots, rank, out_features]."""
        self._down = down
        self._up = up
        self.rows = down.view(-1, down.shape[-1])
        """[projections x slots x rank, in_features]."""
        self.columns = [each.flatten(0, 1) for each in up]
        """For each projection [slots x rank, out_features]."""

    @property
    def num_bytes(self) -> int:
        return self._down.nbytes + sum(up.nbytes for up in self._up)

    def clear(self, slot: int) -> None:
        """Empties a slot: zeros before `_up` make everything behind them zero."""
        self._down[:, slot].zero_()

    def put(self, part: int, slot: int, down: Tensor, up: Tensor) -> None:
        """Writes the adapter of one projection; `down` and `up` are [rank, features], and scaled. After `clear`."""
        self._down[part, slot, : len(down)].copy_(down, non_blocking=True)
        self._up[part][slot, : len(up)].copy_(up, non_blocking=True)


class AdaptedLinear:
    """Several projections of one input as one product, with adapters of each."""

    def __init__(self, base: Linear, tensors: SlotTensors, adapting: Adapting) -> None:
        """`tensors`: of each projection, in the order of the outputs."""
        self.copies_weight = base.copies_weight
        self._base = base
        self._adapting = adapting
        self._rows = tensors.rows
        ends = torch.tensor([0, *(up.shape[1] for up in tensors.columns)]).cumsum(0).tolist()
        self._places = [
            (slice(first, end), up) for first, end, up in zip(ends[:-1], ends[1:], tensors.columns, strict=True)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, in_features] → [rows, out_features]."""
        product = self._base(x)
        if (adapted := self._adapting.now) is None:
            return product
        rows, others, _ = adapted
        narrow = functional.linear(x if rows is None else x[rows], self._rows)
        # Not multiplied by 0: a number that is none must not reach the rows of others.
        narrow = narrow.view(len(narrow), len(self._places), -1).masked_fill(others, 0.0)
        for index, (place, up) in enumerate(self._places):
            if rows is None:
                product[:, place].addmm_(narrow[:, index], up)
            else:
                product[:, place].index_add_(0, rows, narrow[:, index] @ up)
        return product


class AdaptedHeads:
    """Adapters of a layer that computes keys and values of all heads from a latent, where the layer is absorbed into
    queries and outputs: its weight, and so its adapter, is applied from both sides."""

    def __init__(self, tensors: SlotTensors, adapting: Adapting, num_heads: int, key_dim: int) -> None:
        """`tensors`: latent → each head's key, of `key_dim` elements, and value."""
        self._adapting = adapting
        [columns] = tensors.columns
        heads = columns.view(len(columns), num_heads, -1)
        self._keys, self._values = heads[..., :key_dim].permute(1, 2, 0), heads[..., key_dim:].permute(1, 0, 2)
        self._latents = tensors.rows

    def add_to_queries(self, latent: Tensor, query: Tensor) -> None:
        """Adds what adapters add to queries [heads, tokens, key_dim] in the latents' space [heads, tokens, latent]."""
        self._add(latent, query, self._keys, self._latents)

    def add_to_values(self, value: Tensor, latent: Tensor) -> None:
        """Adds what adapters add to mixtures of latents [heads, rows, latent] as values [heads, rows, value]."""
        self._add(value, latent, self._latents.t(), self._values)

    def _add(self, to: Tensor, x: Tensor, first: Tensor, second: Tensor) -> None:
        if (adapted := self._adapting.now) is None:
            return
        rows, others, _ = adapted
        narrow = torch.matmul(x if rows is None else x[:, rows], first)
        added = torch.matmul(narrow.masked_fill(others.transpose(0, 1), 0.0), second)
        if rows is None:
            to.add_(added)
        else:
            to.index_add_(1, rows, added)


class Placed(Protocol):
    """The adapters of all slots for some projections."""

    @property
    def num_bytes(self) -> int: ...

    def clear(self, slot: int) -> None:
        """Empties a slot."""

    def put(self, part: int, slot: int, down: Tensor, up: Tensor) -> None:
        """Writes the adapter of one projection into a slot, after `clear`."""


class AdapterTarget(NamedTuple):
    """Destination of a part of a module's adapter: a projection of a layer's product, of this rank."""

    linear: Placed
    projection: int
    rows: slice
    """Rows of the module's outputs."""
    columns: slice
    """Columns of its inputs."""
