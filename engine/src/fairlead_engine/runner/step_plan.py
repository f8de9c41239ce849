"""One step as numbers: a rank's complete input of a batch, small enough to be sent to every rank.

Rope turns tokens of prompts with images by places in time, row and column. Text goes on by one in all three; an image's
tokens share one place in time, with rows and columns from there on; the text behind goes on from the largest. Source:
multimodal rope (arXiv 2409.12191). No tensors here.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from fairlead_engine.kernels.attention.backend import NewBlocks
from fairlead_engine.kernels.staging import int64s
from fairlead_engine.runner.slot_tokens import NewTokens
from fairlead_engine.types import PromptImage
from fairlead_engine.types.adapters import NOT_PLACED
from fairlead_engine.types.batch import AcceptedDrafts, Batch, Numbers
from fairlead_engine.types.sequences import UNKNOWN, Sequence


def shift_behind(images: Iterable[PromptImage]) -> int:
    """Difference of place and position of tokens behind all images."""
    return sum(max(image.rows, image.columns) - image.num_tokens for image in images)


def places(images: Iterable[PromptImage], start: int, end: int) -> Numbers:
    """int64 [3, end - start]: places of tokens `start` to before `end` of a prompt with these images, in order."""
    found = np.tile(np.arange(start, end), (3, 1))
    shift = 0
    for image in images:
        first, last = max(image.start, start), max(image.start, min(image.end, end))
        if first < last:
            row, column = np.divmod(np.arange(first, last) - image.start, image.columns)
            at = image.start + shift
            found[:, first - start : last - start] = at + np.stack((np.zeros_like(row), row, column))
        step = shift_behind([image])
        found[:, max(0, image.end - start) :] += step
        shift += step
    return found


class PlannedImage(NamedTuple):
    """Tokens of an image that a step computes."""

    request_id: str
    image: PromptImage
    start: int
    """First token that is computed, within the image."""
    end: int
    """End of the computed tokens."""
    row: int
    """The step's row of the first of them."""


class PlannedTree(NamedTuple):
    """Rows of an item that are a draft tree: the last known token and the drafts."""

    first_row: int
    """The step's row of the root."""
    parents: list[int]
    """Parent of each draft: 0 = the root, n = the n-th draft."""


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """A batch's items in order, and the rows of their tokens one after the other. All arrays are int64."""

    slots: Numbers
    num_queries: Numbers
    """Rows (computed tokens) of each item."""
    context_lens: Numbers
    """End of each item in its sequence."""
    samples: Numbers
    """Choices of each item behind its last tokens: 1 at its end and 1 before each draft, or 0."""
    score_rows: list[int] = []
    """Rows whose logits score prompts, item by item."""
    score_sizes: list[int] = []
    """Portions in which they are computed."""
    pool_rows: list[int] = []
    """Rows that go into vectors, item by item."""
    new_tokens: NewTokens = msgspec.field(default_factory=lambda: NewTokens([], np.empty(0, np.int64), 0))
    """Token ids that the device lacks."""
    new_blocks: list[NewBlocks] = []
    adapters: Numbers = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    """The slot of each item's adapter, `NOT_PLACED` for none; empty where no item has one."""
    soft_rows: "list[SoftRows]" = msgspec.field(default_factory=list)
    """Rows with a soft prompt's embeddings instead of their tokens'."""
    images: list[PlannedImage] = []
    """Images with tokens in this step, in the order of their rows."""
    places: Numbers = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    """[3 x rows]: all places in time, then all rows, then all columns; empty = positions."""
    trees: list[PlannedTree] = []
    """Items with a tree of drafts."""
    restored: list[tuple[int, int]] = []
    """Slots whose states begin with this step, and the snapshot each begins with; `NO_SNAPSHOT` = zeros."""
    kept: list[tuple[int, int, int]] = []
    """Slots whose states are copied, the step's row behind which, and the snapshot."""
    accepted: list[AcceptedDrafts] = []
    """`Batch.accepted`."""


class SoftRows(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive rows of virtual tokens of one adapter."""

    first_row: int
    slot: int
    """Slot of the adapter."""
    first: int
    """First virtual token."""
    end: int
    """End of the virtual tokens."""


_NONE = np.empty(0, np.int64)


class SentSlots:
    """The devices' knowledge of each slot's tokens and block table: a step sends only news."""

    def __init__(self, num_slots: int, num_ahead: int = 0, *, has_places: bool = True) -> None:
        """`num_ahead`: known tokens behind a chunk's end, sent with the chunk. `has_places`: whether tokens behind
        images have other places than their positions."""
        self._num_ahead = num_ahead
        self._has_places = has_places
        self._owners: list[Sequence | None] = [None] * num_slots
        self._num_tokens = [0] * num_slots
        self._tables: list[list[int] | None] = [None] * num_slots
        self._num_blocks = [0] * num_slots
        self._adapters = np.full(num_slots, NOT_PLACED)
        self._shifts = np.zeros(num_slots, np.int64)
        self._had_adapters = self._had_images = False

    def new_tokens(self, batch: Batch) -> NewTokens:
        """Token ids that the device lacks: of decodes none, of sequences with drafts only known drafts."""
        places: list[tuple[int, int, int]] = []
        token_ids = [_NONE]
        longest = int(batch.decodes.ends.max(initial=0))
        for item in batch.chunks:
            sequence, end = item.sequence, item.end
            slot = sequence.slot
            longest = max(longest, end)
            if item.drafts:
                if item.drafts[0] == UNKNOWN:
                    continue
                places.append((slot, item.known_end, end))
                token_ids.append(int64s(item.drafts))
                continue
            num_known = self._num_tokens[slot] if self._owners[slot] is sequence else 0
            last = max(end, min(end + self._num_ahead, len(sequence.token_ids)))
            if num_known < last:
                places.append((slot, num_known, last))
                token_ids.append(int64s(sequence.token_ids[num_known:last]))
                self._owners[slot] = sequence
            self._num_tokens[slot] = max(num_known, last, end + item.samples)
        return NewTokens(places, np.concatenate(token_ids), longest + 1)

    def adapters(self, batch: Batch, slots: Numbers) -> Numbers:
        """`StepPlan.adapters`. Every sequence has a chunk before it decodes in its slot, and its adapter stays."""
        for item in batch.chunks:
            adapter = item.sequence.adapter
            if adapter is not None and not adapter.num_virtual_tokens:
                self._adapters[item.sequence.slot] = adapter.slot
                self._had_adapters = True
            elif self._had_adapters:
                self._adapters[item.sequence.slot] = NOT_PLACED
        if not self._had_adapters:
            return _NONE
        found = self._adapters[slots]
        return found if (found != NOT_PLACED).any() else _NONE

    def shifts(self, batch: Batch, slots: Numbers) -> Numbers:
        """Differences of places and positions behind each item's images, noted likewise; empty without images."""
        for item in batch.chunks:
            images = item.sequence.images
            self._had_images = self._had_images or (self._has_places and bool(images))
            if self._had_images:
                self._shifts[item.sequence.slot] = shift_behind(images)
        if not self._had_images:
            return _NONE
        found = self._shifts[slots]
        return found if found.any() or any(item.images for item in batch.chunks) else _NONE

    def new_blocks(self, batch: Batch) -> list[NewBlocks]:
        found = []
        for sequence in (*batch.decodes.grown, *(item.sequence for item in batch.chunks)):
            slot, table = sequence.slot, sequence.block_table
            num_known = self._num_blocks[slot] if self._tables[slot] is table else 0
            if num_known < len(table):
                found.append(NewBlocks(slot, num_known, table[num_known:]))
                self._tables[slot], self._num_blocks[slot] = table, len(table)
        return found


def plan_prompt(token_ids: Numbers, num_blocks: int, *, is_scored: bool = False) -> StepPlan:
    """Plan of one prompt int64 [tokens] in slot 0 and the first `num_blocks` blocks; `is_scored`: logits are wanted."""
    size = len(token_ids)
    return StepPlan(
        slots=np.array([0]),
        num_queries=np.array([size]),
        context_lens=np.array([size]),
        samples=np.array([0]),
        score_rows=list(range(size)) if is_scored else [],
        score_sizes=[size] if is_scored else [],
        new_tokens=NewTokens([(0, 0, size)], token_ids, size),
        new_blocks=[NewBlocks(0, 0, list(range(num_blocks)))],
    )


def plan_step(batch: Batch, sent: SentSlots, most_scored: int) -> StepPlan:
    """The plan of a non-empty batch that is computed next. Scores at most `most_scored` rows at a time, of one item."""
    decodes, chunks = batch.decodes, batch.chunks
    if not chunks:
        return _plan_decodes(batch, sent)
    numbers = [(item.sequence.slot, item.num_tokens, item.end, item.num_choices) for item in chunks]
    slots, num_queries, ends, samples = np.array(numbers, np.int64).reshape(-1, 4).T
    ones = np.ones(len(decodes), np.int64)
    score_rows: list[int] = []
    score_sizes: list[int] = []
    pool_rows: list[int] = []
    soft_rows: list[SoftRows] = []
    kept = _kept_of_decodes(batch)
    row = len(decodes)
    for item in chunks:
        if item.reads_prompt:
            offset = row - item.start
            score_rows += [offset + position - 1 for position in item.scores]  # logits tell of the next token
            score_sizes += [min(most_scored, item.scores.stop - position) for position in item.scores[::most_scored]]
            pool_rows += [offset + position for position in item.pools]
        kept += [(item.sequence.slot, row + end - item.start - 1, snapshot) for end, snapshot in item.kept]
        if virtual := item.virtual_tokens:
            assert item.sequence.adapter is not None
            soft_rows.append(SoftRows(row, item.sequence.adapter.slot, virtual.start, virtual.stop))
        row += item.num_tokens
    slots = np.concatenate((decodes.slots, slots))
    shifts = sent.shifts(batch, slots)
    return StepPlan(
        slots=slots,
        num_queries=np.concatenate((ones, num_queries)),
        context_lens=np.concatenate((decodes.ends, ends)),
        samples=np.concatenate((ones, samples)),
        score_rows=score_rows,
        score_sizes=score_sizes,
        pool_rows=pool_rows,
        new_tokens=sent.new_tokens(batch),
        new_blocks=sent.new_blocks(batch),
        adapters=sent.adapters(batch, slots),
        soft_rows=soft_rows,
        images=_images(batch),
        places=_places(batch, shifts) if len(shifts) else _NONE,
        restored=batch.restored,
        kept=kept,
        accepted=batch.accepted,
    )


def _kept_of_decodes(batch: Batch) -> list[tuple[int, int, int]]:
    slots = batch.decodes.slots
    return [(int(slots[row]), row, snapshot) for row, snapshot in batch.kept]


def _plan_decodes(batch: Batch, sent: SentSlots) -> StepPlan:
    """Plan of a batch of decodes alone: one row of each."""
    slots, ends = batch.decodes.slots, batch.decodes.ends
    ones, shifts = np.ones(len(slots), np.int64), sent.shifts(batch, slots)
    return StepPlan(
        slots=slots,
        num_queries=ones,
        context_lens=ends,
        samples=ones,
        new_tokens=NewTokens([], _NONE, int(ends.max()) + 1),
        new_blocks=sent.new_blocks(batch),
        adapters=sent.adapters(batch, slots),
        places=_places(batch, shifts) if len(shifts) else _NONE,
        kept=_kept_of_decodes(batch),
        accepted=batch.accepted,
    )


def _images(batch: Batch) -> list[PlannedImage]:
    found, row = [], len(batch.decodes)
    for item in batch.chunks:
        for image in item.images:
            start, end = max(item.start, image.start), min(item.end, image.end)
            parts = start - image.start, end - image.start, row + start - item.start
            found.append(PlannedImage(item.sequence.request_id, image, *parts))
        row += item.num_tokens
    return found


def _places(batch: Batch, shifts: Numbers) -> Numbers:
    num_decodes = len(batch.decodes)
    decodes = np.tile(batch.decodes.ends - 1 + shifts[:num_decodes], (3, 1))
    of_chunks = [places(each.sequence.images, each.start, each.end) for each in batch.chunks]
    return np.concatenate((decodes, *of_chunks), axis=1).ravel()
