"""Drafters on the device, i.e. a smaller model or heads beside the model; and drafts as trees.

A tree has the nodes of given paths, or the nodes that are likeliest as a whole, by the product of their probabilities.
The drafter computes probabilities behind a node; the functions here choose the nodes. Drafts are the likeliest tokens
also for sequences that draw: a draft is accepted where the drawn token is among them.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from fairlead_engine.config import EngineConfig
from fairlead_engine.errors import ConfigError
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.runner.host_cache import HostCache
from fairlead_engine.runner.model_part import Computed, ModelPart
from fairlead_engine.runner.sampler import Sampler
from fairlead_engine.runner.slot_tokens import SlotTokens
from fairlead_engine.runner.step_plan import StepPlan
from fairlead_engine.runner.tree_step import depths_of
from fairlead_engine.speculative.tree_shape import DynamicTree, StaticTree, TreeShape
from fairlead_engine.types.batch import Batch, Numbers
from fairlead_engine.types.sequences import ScheduledSequence


class Drafter(Protocol):
    """A drafter of one model runner. Drafts enter the slots' tokens before their step is computed. Each class is named
    by the `drafter` of an entry in `speculative.drafting.METHODS`."""

    @classmethod
    def load(cls, config: EngineConfig, part: ModelPart) -> Self:
        """From `config.speculative_model`, to draft for the model of `part`. Raises ModelLoadError and ConfigError."""

    @property
    def num_ahead(self) -> int:
        """Tokens behind a step's own, sent to the device with the step."""

    @property
    def bytes_per_block(self) -> int:
        """Bytes of its own cache per block."""

    def allocate(self, num_blocks: int, num_slots: int, blocks_per_slot: int, tokens: SlotTokens) -> None:
        """Makes room for as many blocks and slots as the model has. Reads the slots' `tokens` and adds drafts."""

    host: HostCache | None
    """Copies of the drafter's own cache blocks in the host's memory; None = no cache or no copies."""

    def allocate_places(self, num_places: int) -> None:
        """Makes room in the host's memory for copies of `num_places` blocks."""

    def draft(self, batch: Batch, plan: StepPlan, sampler: Sampler) -> Tensor | None:
        """The batch's drafts, int32 [drafts], item by item; None = none. Writes `parents` and `depth` of trees."""

    def follow(self, plan: StepPlan, computed: Computed) -> Tensor | None:
        """A step was computed, and its choices are in the slots' tokens. Returns hidden states to keep for each choice
        [tokens that are chosen, hidden]; None = nothing."""

    def note(self, slots: Numbers, hidden: Tensor) -> None:
        """A step has ended; `hidden` [slots, hidden]: rows of `follow` for each slot's last accepted token."""


def fitted(logits: Tensor, vocab_size: int) -> Tensor:
    """Logits [rows, any], cut or padded to the large model's vocabulary."""
    num_missing = vocab_size - logits.shape[1]
    if num_missing <= 0:
        return logits[:, :vocab_size]
    return torch.nn.functional.pad(logits, (0, num_missing), value=float("-inf"))


def next_tokens(items: list[ScheduledSequence], place: int) -> Batch:
    """Items with a draft at `place`, each ending before the draft."""
    left = [item for item in items if len(item.drafts) > place]
    return Batch([ScheduledSequence(item.sequence, 1, item.known_end + place) for item in left])


def draft_places(items: list[ScheduledSequence], device: torch.device) -> tuple[Tensor, ...]:
    """Slots and positions of all drafts, item by item: int64 [drafts] each."""
    places = [(item.sequence.slot, position) for item in items for position in range(item.known_end, item.end)]
    return to_device(np.array(places, np.int64).T.copy(), device).unbind()


class Frontier(NamedTuple):
    """The nodes of one position that are continued."""

    place: int
    """Position of the next drafts: 0 = behind the last known token."""
    items: list[ScheduledSequence]
    rows: Tensor
    """int64 [items]: indices among all items."""
    token_ids: Tensor
    """int64 [items, width]: the followed drafts; empty at place 0."""
    came_from: Tensor
    """int64 [items, width]: each draft's index in the frontier before."""


LogitsOf = Callable[[Frontier], Tensor]
"""[items, width, vocab] behind a frontier's nodes; [items, 1, vocab] at place 0. May be float16 or bfloat16."""


def fill_static(items: list[ScheduledSequence], tree: StaticTree, likeliest: list[Tensor]) -> Tensor:
    """`likeliest`: int64 [items, width] by position. Writes each item's tree; returns int32 [drafts], item by item."""
    numbers: list[tuple[int, int, int]] = []
    for index, item in enumerate(items):
        paths = tree.first(item.depth, len(item.drafts))
        nodes = {path: node for node, path in enumerate(paths, start=1)}
        item.parents = [nodes.get(path[:-1], 0) for path in paths]
        item.depth = max(map(len, paths))
        numbers += [(len(path) - 1, index, path[-1]) for path in paths]
    place, row, rank = to_device(np.array(numbers, np.int64), likeliest[0].device).unbind(1)
    return torch.stack(likeliest)[place, row, rank].int()


def fill_dynamic(items: list[ScheduledSequence], tree: DynamicTree, logits_of: LogitsOf) -> Tensor:
    """`fill_static` for trees of the likeliest drafts, to each item's `depth`, as far as its drafts have room for the
    continued ones (`width` at each position but the last)."""
    width = tree.width
    places = [min(item.depth, 1 + len(item.drafts) // width) for item in items]
    found = _Candidates(len(items), width, max(places))
    for place in range(max(places)):
        rows = [row for row, num_places in enumerate(places) if num_places > place]
        found.follow([items[row] for row in rows], rows, place, logits_of)
    token_ids, parents = found.likeliest([len(item.drafts) for item in items])
    first = 0
    for item in items:
        item.parents = parents[first : first + len(item.drafts)]
        item.depth = max(depths_of(item.parents))
        first += len(item.drafts)
    return token_ids


def put_drafts(items: list[ScheduledSequence], drafts: Tensor, tokens: SlotTokens) -> None:
    """Writes drafts behind the known tokens of their slots."""
    slots, positions = draft_places(items, drafts.device)
    tokens.put(slots, positions, drafts.long())


def check_width(tree: TreeShape | None, num_words: int) -> None:
    """Raises ConfigError for more drafts behind one token than the vocabulary has."""
    if tree is not None and tree.width > num_words:
        problem = f"guesses {tree.width} tokens for one place, among {num_words} words"
        raise ConfigError("speculative_tree", problem, "make it narrower")


class _Candidates:
    """All drafts of some items: `width` for the first position, and `width` behind each continued draft."""

    def __init__(self, num_items: int, width: int, num_places: int) -> None:
        self._width, self._shape = width, (num_items, width + width**2 * (num_places - 1))
        self._is_begun = False

    def follow(self, items: list[ScheduledSequence], rows: list[int], place: int, logits_of: LogitsOf) -> None:
        """Adds the drafts for a position."""
        width = self._width
        if not self._is_begun:
            nothing = torch.empty(len(items), 0, dtype=torch.int64)
            logits = logits_of(Frontier(place, items, torch.tensor(rows), nothing, nothing))
            self._allocate(logits.device)
            on_device, before = to_device(np.array(rows), logits.device), None
        else:
            on_device = to_device(np.array(rows), self._token_ids.device)
            before = self._frontier[on_device]
            frontier = Frontier(
                place, items, on_device, self._token_ids[on_device.unsqueeze(1), before], self._came_from[on_device]
            )
            logits = logits_of(frontier)
        scores, token_ids = logits.float().log_softmax(-1).nan_to_num(nan=float("-inf")).clamp(max=0.0).topk(width)
        if before is not None:
            scores = scores + self._scores[on_device.unsqueeze(1), before].unsqueeze(-1)
        scores = scores.nan_to_num(nan=float("-inf"), neginf=float("-inf"))
        first = 0 if before is None else width + width**2 * (place - 1)
        columns = slice(first, first + scores[0].numel())
        self._token_ids[on_device, columns] = token_ids.flatten(1)
        self._scores[on_device, columns] = scores.flatten(1)
        best = scores.flatten(1).sort(descending=True, stable=True).indices[:, :width]
        if before is not None:
            self._parents[on_device, columns] = before.repeat_interleave(width, 1)
            self._came_from[on_device] = best // width
        self._frontier[on_device] = first + best

    def likeliest(self, numbers: list[int]) -> tuple[Tensor, list[int]]:
        """The `numbers` likeliest drafts of each item: tokens, int32 [drafts], and parents: 0, or a draft of the same
        item, from 1 on. Parents are included: a draft is no likelier than its parent, which comes first."""
        device = self._scores.device
        best = self._scores.sort(descending=True, stable=True).indices
        wanted = torch.arange(self._shape[1], device=device) < to_device(np.array(numbers), device).unsqueeze(1)
        is_taken = torch.zeros(self._shape, dtype=torch.bool, device=device).scatter(1, best, wanted)
        number = is_taken.cumsum(1)
        hangs_on = torch.where(self._parents < 0, 0, number.gather(1, self._parents.clamp(min=0)))
        token_ids, parents = self._token_ids[is_taken], hangs_on[is_taken]
        return token_ids.int(), parents.tolist()

    def _allocate(self, device: torch.device) -> None:
        num_items, width, self._is_begun = self._shape[0], self._width, True
        self._token_ids = torch.zeros(self._shape, dtype=torch.int64, device=device)
        self._scores = torch.full(self._shape, float("-inf"), device=device)
        self._parents = torch.full(self._shape, -1, dtype=torch.int64, device=device)
        self._frontier = torch.zeros((num_items, width), dtype=torch.int64, device=device)
        self._came_from = torch.zeros((num_items, width), dtype=torch.int64, device=device)
