"""The slots of a device, each with room for one adapter of all linear layers, and the rows of a step that use them.

Loading a model wraps its linear layers in `AdaptedLinear`; the runner places adapters and sets the rows of each. The
adapters of all slots lie side by side: x Aᵀ Bᵀ is two products for all rows, with any number of adapters; columns of
other adapters are cleared in between. The columns, slots times ranks, are few beside a weight's. Many adapters in one
batch: Punica (arXiv 2310.18547), S-LoRA (arXiv 2311.03285).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
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


class Adapting(Protocol):
    """Knows the rows of the next product."""

    now: AdaptedRows | None
    """None = none of them has an adapter."""


class AdaptedLinear:
    """Several projections of one input as one product, with adapters of each."""

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
        """`out_features`: of each projection, in the order of the outputs."""
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
        """Empties a slot: zeros before `_up` make everything behind them zero."""
        self._down[:, slot].zero_()

    def put(self, part: int, slot: int, down: Tensor, up: Tensor) -> None:
        """Writes the adapter of one projection; `down` and `up` are [rank, features], and scaled. After `clear`."""
        self._down[part, slot, : len(down)].copy_(down, non_blocking=True)
        self._up[part][slot, : len(up)].copy_(up, non_blocking=True)


class AdapterTarget(NamedTuple):
    """Destination of a part of a module's adapter: a projection of a layer's product, of this rank."""

    linear: AdaptedLinear
    projection: int
    rows: slice
    """Rows of the module's outputs."""
    columns: slice
    """Columns of its inputs."""


@dataclass(slots=True)
class Module:
    """A layer under its name in adapters' folders."""

    in_features: int
    out_features: int
    places: list[AdapterTarget] = field(default_factory=list)
    """Several where a module is stored as one and computed as several."""


class HostAdapter(NamedTuple):
    """An adapter in the host's memory: the rank's part, in the model's dtype."""

    tensors: list[tuple[AdapterTarget, Tensor, Tensor]]
    """[rank, in_features] and [rank, out_features], the latter scaled."""
    prompt: Tensor | None = None
    """[virtual tokens, hidden] of a soft prompt, which has no other tensors."""

    @property
    def num_bytes(self) -> int:
        of_prompt = 0 if self.prompt is None else self.prompt.nbytes
        return of_prompt + sum(down.nbytes + up.nbytes for _, down, up in self.tensors)

    def digest(self) -> bytes:
        """Of all its numbers and their places; the same only within this process."""
        found = blake2b(digest_size=16)
        for place, *pair in self.tensors:
            found.update(f"{id(place.linear)} {place.projection} {place.rows} {place.columns}".encode())
            for tensor in pair:
                found.update(_bytes_of(tensor))
        if self.prompt is not None:
            found.update(_bytes_of(self.prompt))
        return found.digest()


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.flatten().view(torch.uint8).numpy().data


class AdapterSlots:
    """All slots. While the model computes, `now` has the rows of the next product with adapters."""

    def __init__(
        self, num_slots: int, rank: int, dtype: torch.dtype, device: torch.device, *, hidden_size: int
    ) -> None:
        """`rank`: the largest of any adapter. `hidden_size`: of the model's embeddings."""
        self.num_slots = num_slots
        self.hidden_size = hidden_size
        self.rank = rank
        self.dtype = dtype
        self.device = device
        self.now: AdaptedRows | None = None
        self.modules: dict[str, Module] = {}
        """By their names in checkpoints and in the folders of adapters."""
        self.orders: dict[str, Tensor] = {}
        """Orders of each head's outputs of a module, where they differ from the checkpoint's: int64 [head_dim]."""
        self._linears: list[AdaptedLinear] = []
        self._fused: dict[str, tuple[str, int, int]] = {}
        """Projection stored as a part of another → the other's name, number of rows, and first row of the part."""
        self._owners = torch.arange(num_slots, device=device).repeat_interleave(rank)
        """int64 [slots x rank]: slot of each column."""
        self._prompts: list[Tensor | None] = [None] * num_slots

    @property
    def num_bytes(self) -> int:
        """Bytes on the device, whether slots are full or not."""
        return sum(linear.num_bytes for linear in self._linears)

    def fuse(self, name: str, parts: Mapping[str, int]) -> None:
        """Several modules are stored as one, below one another: name → outputs."""
        first = 0
        for part, size in parts.items():
            self._fused[part] = name, sum(parts.values()), first
            first += size

    def adapted(
        self,
        base: Linear,
        out_features: Mapping[str, int],
        in_features: int,
        row_parts: Sequence[slice],
        column_part: slice,
    ) -> AdaptedLinear:
        """Wraps a layer that adapters may change: this rank's part of it (`Weights.linear`)."""
        ends = [part.indices(size)[:2] for part, size in zip(row_parts, out_features.values(), strict=True)]
        columns = slice(*column_part.indices(in_features)[:2])
        linear = AdaptedLinear(
            base, columns.stop - columns.start, [end - first for first, end in ends],
            self.num_slots, self.rank, self, self.dtype, self.device,
        )  # fmt: skip
        for index, ((name, size), (first, end)) in enumerate(zip(out_features.items(), ends, strict=True)):
            stored, num_rows, offset = self._fused.get(name, (name, size, 0))
            module = self.modules.setdefault(stored, Module(in_features, num_rows))
            module.places.append(AdapterTarget(linear, index, slice(offset + first, offset + end), columns))
        self._linears.append(linear)
        return linear

    @torch.inference_mode()
    def put(self, slot: int, adapter: HostAdapter) -> None:
        """Places an adapter in a slot instead of the last adapter, for later launches only."""
        for linear in self._linears:
            linear.clear(slot)
        prompt = adapter.prompt
        self._prompts[slot] = None if prompt is None else prompt.to(self.device, non_blocking=True)
        for place, down, up in adapter.tensors:
            place.linear.put(place.projection, slot, down, up)

    def prompt(self, slot: int) -> Tensor:
        """[virtual tokens, hidden] of the slot's soft prompt."""
        prompt = self._prompts[slot]
        assert prompt is not None, "no soft prompt is placed in that slot"
        return prompt

    def of_rows(self, rows: Tensor | None, slots: Tensor) -> AdaptedRows:
        """`slots` int64 [adapted]: the slot of each of those rows; below 0 = none, where `rows` are all."""
        return AdaptedRows(rows, (slots.unsqueeze(1) != self._owners).unsqueeze(1))
