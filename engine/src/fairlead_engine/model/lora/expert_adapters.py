"""The slots' adapters of a layer's experts: small products beside each expert's own, for the rows that go to it.

The adapters of all experts lie in one tensor for each side: experts are computed one by one on a CPU, with views of it,
and all together on a GPU, by the same grouped products as their weights. Room is taken for each expert in each slot, so
the largest rank has a limit of its own (`--max-lora-expert-rank`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fairlead_engine.kernels.expert_product import ExpertWeights, row_product, weighted_product
from fairlead_engine.kernels.routes import ExpertRouting, Routes
from fairlead_engine.model.linear import Linear
from fairlead_engine.model.lora.adapted_layers import AdaptedLinear, AdaptedRows, AdapterTarget, Adapting, SlotTensors


class ExpertTensors:
    """The adapters of all slots for the projections of one input, of each expert (`Placed`)."""

    def __init__(self, down: Tensor, up: Tensor) -> None:
        """`down` [experts, projections, slots, rank, in_features], `up` [projections, experts, out_features, slots,
        rank]."""
        self._down = down
        self._up = up

    @property
    def num_bytes(self) -> int:
        return self._down.nbytes + self._up.nbytes

    def clear(self, slot: int) -> None:
        self._down[:, :, slot].zero_()

    def put(self, part: int, slot: int, down: Tensor, up: Tensor) -> None:
        """`down` and `up` are [experts, rank, features]."""
        rank = down.shape[1]
        self._down[:, part, slot, :rank].copy_(down, non_blocking=True)
        self._up[part, :, :, slot, :rank].copy_(up.transpose(1, 2), non_blocking=True)

    def of_expert(self, index: int) -> SlotTensors:
        """Views of one expert's."""
        return SlotTensors(self._down[index], [up[index].permute(1, 2, 0) for up in self._up])

    @property
    def stacked(self) -> tuple[ExpertWeights, list[ExpertWeights]]:
        """Products of all slots' columns: x → [projections x slots x rank], and those of a projection → its outputs."""
        return ExpertWeights(self._down.flatten(1, 3)), [ExpertWeights(up.flatten(2)) for up in self._up]


@dataclass(slots=True)
class ExpertModule:
    """A layer of each expert, under the name that one parameter for all experts has in adapters' folders."""

    num_experts: int
    in_features: int
    out_features: int
    are_sides_swapped: bool
    """Whether PEFT takes a parameter's inputs for its outputs, as where it is stored [experts, inputs, outputs]
    without saying so."""
    places: list[AdapterTarget] = field(default_factory=list)
    """Several where projections are stored as one."""


class OfExpert(NamedTuple):
    """A layer of one expert."""

    module: str
    """Name of the layer of all."""
    place: int
    """Of the expert among them."""


class ExpertSlots:
    """The slots' adapters of all experts. While an expert computes on a CPU, `now` has its rows."""

    def __init__(self, adapting: Adapting, num_slots: int, rank: int, dtype: torch.dtype, device: torch.device) -> None:
        """`adapting`: knows the tokens' rows. `rank`: the largest of any adapter of experts; 0 = none has any."""
        self.rank = rank
        self.now: AdaptedRows | None = None
        self.modules: dict[str, ExpertModule] = {}
        """By the names of parameters of all experts."""
        self.of_experts: dict[str, OfExpert] = {}
        """By the names of an expert's layers."""
        self._adapting = adapting
        self._shape = num_slots, rank
        self._kind = dtype, device
        self._owners = torch.arange(num_slots, device=device).repeat_interleave(rank)

    @property
    def parameters(self) -> list[str]:
        """Names of parameters of all experts."""
        return [name for name in self.modules if "/" not in name]

    def tensors(
        self,
        experts: Sequence[Mapping[str, int]],
        parameter: str,
        in_features: int,
        row_parts: Sequence[slice],
        column_part: slice,
        *,
        are_sides_swapped: bool = False,
    ) -> ExpertTensors:
        """Room for adapters of the projections of one input, of each expert, by name (`Weights.expert_layer`);
        `parameter`: name of all as one."""
        ends = [part.indices(size)[:2] for part, size in zip(row_parts, experts[0].values(), strict=True)]
        columns = slice(*column_part.indices(in_features)[:2])
        [num_rows] = {end - first for first, end in ends}
        (num_slots, rank), (dtype, device) = self._shape, self._kind
        down = len(experts), len(ends), num_slots, rank, columns.stop - columns.start
        up = len(ends), len(experts), num_rows, num_slots, rank
        tensors = ExpertTensors(*(torch.zeros(size, dtype=dtype, device=device) for size in (down, up)))
        whole = ExpertModule(len(experts), in_features, sum(experts[0].values()), are_sides_swapped)
        for part, ((first, end), size) in enumerate(zip(ends, experts[0].values(), strict=True)):
            above = sum([*experts[0].values()][:part])
            whole.places.append(AdapterTarget(tensors, part, slice(above + first, above + end), columns))
            alone = ExpertModule(len(experts), in_features, size, False)
            alone.places.append(AdapterTarget(tensors, part, slice(first, end), columns))
            name = f"{parameter}/{part}"
            self.modules[name] = alone
            for index, layers in enumerate(experts):
                self.of_experts[[*layers][part]] = OfExpert(name, index)
        self.modules[parameter] = whole
        return tensors

    def of_rows(self, num_rows: int, each: int = 1) -> Tensor | None:
        """int64 [rows x each]: slot of the adapter of each row of the next product; below 0 = none. None = no row has
        any. `each`: rows of a token, beside each other."""
        if (now := self._adapting.now) is None:
            return None
        slots = now.slots
        if now.rows is not None:
            slots = slots.new_full((num_rows // each,), -1).index_copy_(0, now.rows, slots)
        return slots if each == 1 else slots.repeat_interleave(each)

    def choose(self, slots: Tensor | None) -> None:
        """Sets the rows of the next expert on a CPU."""
        has_any = slots is not None and bool((slots >= 0).any())
        self.now = AdaptedRows(None, self.others(slots).unsqueeze(1), slots) if has_any and slots is not None else None

    def others(self, slots: Tensor) -> Tensor:
        """bool [rows, slots x rank]: columns of other adapters than the row's."""
        return slots.unsqueeze(1) != self._owners


class AdaptedPairs(NamedTuple):
    """Pairs of rows and their experts, for products with adapters."""

    others: Tensor
    """bool [pairs, slots x rank]: the columns of adapters other than the row's."""
    routes: Routes
    """Where pairs go, with scores of 1."""


class ExpertAdapters(NamedTuple):
    """The adapters of a layer's experts."""

    slots: ExpertSlots
    gate_up: ExpertTensors
    down: ExpertTensors

    def adapted(self, index: int, gate_up: Linear, down: Linear) -> tuple[AdaptedLinear, AdaptedLinear]:
        """Wraps the projections of one expert, for CPUs."""
        tensors = self.gate_up.of_expert(index), self.down.of_expert(index)
        first, second = (AdaptedLinear(base, of, self.slots) for base, of in zip((gate_up, down), tensors, strict=True))
        return first, second

    def pairs(self, routes: Routes, each: int) -> AdaptedPairs | None:
        """Of a step's rows, `each` of them a token's; None = no row has an adapter."""
        num_rows, num_chosen = routes.experts.shape
        if (slots := self.slots.of_rows(num_rows, each)) is None:
            return None
        plain = routes._replace(scores=torch.ones_like(routes.scores), largest=None, largest_within=None)
        return AdaptedPairs(self.slots.others(slots.repeat_interleave(num_chosen)), plain)

    def before_gate(self, x: Tensor, pairs: AdaptedPairs) -> Tensor:
        """Added to the products of gate and up: [pairs, out_features]."""
        shrink, grow = self.gate_up.stacked
        narrow = row_product(x, shrink, pairs.routes).view(pairs.routes.num_pairs, len(grow), -1)
        narrow = narrow.masked_fill_(pairs.others.unsqueeze(1), 0.0)
        unweighted = ExpertRouting(pairs.routes.experts.shape[1], normalised=False)
        parts = [weighted_product(narrow[:, part], up, pairs.routes, unweighted) for part, up in enumerate(grow)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)).flatten(0, 1)

    def behind_gate(self, rows: Tensor, pairs: AdaptedPairs, scores: Tensor, routing: ExpertRouting) -> Tensor:
        """Added to the weighted outputs: [tokens, each, out_features]. `rows` [pairs, in_features]; `scores`: of
        `Routes`."""
        shrink, [grow] = self.down.stacked
        unweighted = ExpertRouting(pairs.routes.experts.shape[1], normalised=False)
        narrow = weighted_product(rows, shrink, pairs.routes, unweighted).flatten(0, 1)
        narrow = narrow.masked_fill_(pairs.others, 0.0)
        return weighted_product(narrow, grow, pairs.routes._replace(scores=scores), routing)
