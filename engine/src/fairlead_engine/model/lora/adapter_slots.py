"""The slots of a device, each with room for one adapter of all linear layers, and the rows of a step that use them.

Loading a model wraps its linear layers in `AdaptedLinear`; the runner places adapters and sets the rows of each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import torch
from torch import Tensor

from fairlead_engine.model.linear import Linear
from fairlead_engine.model.lora.adapted_layers import (
    AdaptedHeads,
    AdaptedLinear,
    AdaptedRows,
    AdapterTarget,
    Placed,
    SlotTensors,
)
from fairlead_engine.model.lora.expert_adapters import ExpertAdapters, ExpertSlots

OLD_BLOCK, NEW_BLOCK = ".block_sparse_moe.", ".mlp."
"""A layer's experts, by older and newer names in transformers, of some models."""


@dataclass(slots=True)
class Module:
    """A layer under its name in adapters' folders."""

    in_features: int
    out_features: int
    places: list[AdapterTarget] = field(default_factory=list)
    """Several where a module is stored as one and computed as several."""
    is_optional: bool = False
    """Whether some versions of the model have a parameter in place of the layer, as routers: an adapter of all layers
    may leave it out."""


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
        self,
        num_slots: int,
        rank: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        hidden_size: int,
        expert_rank: int = 0,
        are_merged: bool = False,
    ) -> None:
        """`rank`, `expert_rank`: the largest of any adapter, and of those of experts. `hidden_size`: of the model's
        embeddings. `are_merged`: adapters become part of the weights, however these are stored."""
        self.num_slots = num_slots
        self.hidden_size = hidden_size
        self.are_merged = are_merged
        self.rank = rank
        self.dtype = dtype
        self.device = device
        self.now: AdaptedRows | None = None
        self.modules: dict[str, Module] = {}
        """By their names in checkpoints and in the folders of adapters."""
        self.orders: dict[str, Tensor] = {}
        """Orders of each head's outputs of a module, where they differ from the checkpoint's: int64 [head_dim]."""
        self.experts = ExpertSlots(self, num_slots, expert_rank, dtype, device)
        self._placed: list[Placed] = []
        self._fused: dict[str, tuple[str, int, int]] = {}
        """Projection stored as a part of another → the other's name, number of rows, and first row of the part."""
        self._owners = torch.arange(num_slots, device=device).repeat_interleave(rank)
        """int64 [slots x rank]: slot of each column."""
        self._prompts: list[Tensor | None] = [None] * num_slots

    @property
    def num_bytes(self) -> int:
        """Bytes on the device, whether slots are full or not."""
        return sum(placed.num_bytes for placed in self._placed)

    def own_name(self, name: str) -> str:
        """The name of a layer, or of what holds parameters of experts, as this model's checkpoints have it."""
        for each in (name, name.replace(NEW_BLOCK, OLD_BLOCK)):
            is_known = each in self.modules or each in self.experts.of_experts
            if is_known or f"{each}.down_proj" in self.experts.modules:
                return each
        return name

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
        *,
        is_optional: bool = False,
    ) -> AdaptedLinear:
        """Wraps a layer that adapters may change: this rank's part of it (`Weights.linear`)."""
        tensors = self._tensors(out_features, in_features, row_parts, column_part, is_optional)
        return AdaptedLinear(base, tensors, self)

    def adapted_heads(
        self, name: str, num_heads: int, key_dim: int, value_dim: int, latent_dim: int, heads: slice
    ) -> AdaptedHeads:
        """Adapters of an absorbed layer, from latents to each head's key and value, for this rank's `heads`."""
        of_head = key_dim + value_dim
        rows = slice(heads.start * of_head, heads.stop * of_head)
        tensors = self._tensors({name: num_heads * of_head}, latent_dim, [rows], slice(None), is_optional=False)
        return AdaptedHeads(tensors, self, heads.stop - heads.start, key_dim)

    def adapted_experts(
        self,
        gate_up: Sequence[Mapping[str, int]],
        down: Sequence[Mapping[str, int]],
        sizes: tuple[int, int],
        row_parts: Sequence[slice],
        column_part: slice,
        *,
        are_sides_swapped: bool = False,
    ) -> ExpertAdapters | None:
        """Room for adapters of the experts of a layer, by the names of their projections; None = they may have none.
        `sizes`: of the inputs of both. `row_parts`, `column_part`: this rank's outputs of `gate_up`, inputs of
        `down`."""
        if not self.experts.rank:
            return None
        layer = next(iter(down[0])).rpartition(".")[0].rpartition(".")[0]
        first = "gate_up_proj" if len(gate_up[0]) > 1 else next(iter(gate_up[0])).rpartition(".")[2]
        of_all = []
        for experts, name, size, parts, columns in (
            (gate_up, first, sizes[0], row_parts, slice(None)),
            (down, "down_proj", sizes[1], [slice(None)], column_part),
        ):
            tensors = self.experts.tensors(
                experts, f"{layer}.{name}", size, parts, columns, are_sides_swapped=are_sides_swapped
            )
            self._placed.append(tensors)
            of_all.append(tensors)
        return ExpertAdapters(self.experts, *of_all)

    def _tensors(
        self,
        out_features: Mapping[str, int],
        in_features: int,
        row_parts: Sequence[slice],
        column_part: slice,
        is_optional: bool,
    ) -> SlotTensors:
        """Room for adapters of these modules."""
        ends = [part.indices(size)[:2] for part, size in zip(row_parts, out_features.values(), strict=True)]
        columns = slice(*column_part.indices(in_features)[:2])
        tensors = SlotTensors(
            self._zeros(len(ends), self.num_slots, self.rank, columns.stop - columns.start),
            [self._zeros(self.num_slots, self.rank, end - first) for first, end in ends],
        )
        for index, ((name, size), (first, end)) in enumerate(zip(out_features.items(), ends, strict=True)):
            stored, num_rows, offset = self._fused.get(name, (name, size, 0))
            module = self.modules.setdefault(stored, Module(in_features, num_rows, is_optional=is_optional))
            module.places.append(AdapterTarget(tensors, index, slice(offset + first, offset + end), columns))
        self._placed.append(tensors)
        return tensors

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=self.dtype, device=self.device)

    @torch.inference_mode()
    def put(self, slot: int, adapter: HostAdapter) -> None:
        """Places an adapter in a slot instead of the last adapter, for later launches only."""
        for placed in self._placed:
            placed.clear(slot)
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
        return AdaptedRows(rows, (slots.unsqueeze(1) != self._owners).unsqueeze(1), slots)
