"""Which states of a recurrent model each step begins with, and which it keeps."""

import numpy as np

from fairlead_common.wire.blocks import BlockHash
from fairlead_engine.core.block_manager import BlockManager
from fairlead_engine.core.state_snapshots import StateSnapshots
from fairlead_engine.types.batch import NO_SNAPSHOT, AcceptedDrafts, Batch
from fairlead_engine.types.sequences import NO_SLOT, ScheduledSequence, Sequence


class RecurrentStates:
    """Plans copies between the states of slots and snapshots, beside the scheduler's steps. A state is kept at the last
    whole block of a prompt, where another prompt left a cached one, evenly within long prompts, and behind each block
    that decodes complete, in the place of the one before. States of sequences with drafts go on behind the accepted
    ones, and are kept, with the next step, before any state is read."""

    def __init__(self, blocks: BlockManager, snapshots: StateSnapshots) -> None:
        self._blocks = blocks
        self._snapshots = snapshots
        self._begun: list[tuple[int, int]] = []
        """`Batch.restored` of the step that is planned."""
        self._accepted: list[AcceptedDrafts] = []
        """`Batch.accepted` of the next step."""

    def begin(self, sequence: Sequence, num_blocks: int) -> None:
        """The sequence begins in its slot behind `num_blocks` cached blocks."""
        snapshot = self._snapshots.use(sequence.block_hashes[num_blocks - 1]) if num_blocks else NO_SNAPSHOT
        self._begun.append((sequence.slot, snapshot))

    def plan(self, batch: Batch) -> None:
        """Fills in what a planned step restores and keeps."""
        if not len(batch):
            return
        batch.restored, self._begun = self._begun, []
        batch.accepted, self._accepted = self._accepted, []
        if not self._blocks.enable_prefix_caching:
            return
        for item in batch.chunks:
            if not item.drafts:
                item.kept = self._of_chunk(item)
        for row in np.flatnonzero(batch.decodes.ends % self._blocks.block_size == 0).tolist():
            snapshot = self._rolled(batch.decodes.sequences[row])
            if snapshot is not None:
                batch.kept.append((row, snapshot))

    def keep(self, batch: Batch) -> None:
        """Names what a step has kept, after its blocks were published."""
        for item in batch.chunks:
            for end, snapshot in item.kept:
                self._name(item.sequence, end, snapshot)
        for row, snapshot in batch.kept:
            sequence, end = batch.decodes.sequences[row], int(batch.decodes.ends[row])
            if self._name(sequence, end, snapshot) and sequence.slot != NO_SLOT:
                sequence.kept_end = end
        drafted = [each for each in batch.chunks if each.drafts and each.sequence.slot != NO_SLOT]
        computed = [each for each in drafted if each.sequence.num_computed_tokens > each.start]
        ends = [self._whole_end(each) for each in computed]
        # All places are taken before any is named: none is another's.
        places = [self._rolled(each.sequence) if end else None for each, end in zip(computed, ends, strict=True)]
        for each, end, place in zip(computed, ends, places, strict=True):
            self._accept(each, end, place)

    def _whole_end(self, item: ScheduledSequence) -> int:
        """End of the last block that a sequence completes with this step; 0 = of none that is kept."""
        size, end = self._blocks.block_size, item.sequence.num_computed_tokens
        return end // size * size if self._blocks.enable_prefix_caching and end // size > item.start // size else 0

    def _accept(self, item: ScheduledSequence, end: int, snapshot: int | None) -> None:
        """Notes the accepted drafts, and the snapshot at `end`."""
        sequence, first = item.sequence, item.start + 1
        number = sequence.num_computed_tokens - first
        if snapshot is not None and self._name(sequence, end, snapshot):
            sequence.kept_end = end
            self._accepted.append(AcceptedDrafts(sequence.slot, number, end - first, snapshot))
        elif number:
            self._accepted.append(AcceptedDrafts(sequence.slot, number))

    def _of_chunk(self, item: ScheduledSequence) -> list[tuple[int, int]]:
        size, sequence, start, end = self._blocks.block_size, item.sequence, item.start, item.end
        step = size * self._snapshots.spacing(sequence.num_tokens // size)
        last = (sequence.num_tokens - 1) // size * size
        ends = {last, sequence.branch, *range(start // step * step + step, end + 1, step)}
        wanted = ((each, self._taken()) for each in sorted(ends) if start < each <= end)
        return [(each, snapshot) for each, snapshot in wanted if snapshot is not None]

    def _rolled(self, sequence: Sequence) -> int | None:
        if sequence.kept_end:
            block_hash = sequence.block_hashes[sequence.kept_end // self._blocks.block_size - 1]
            if (snapshot := self._snapshots.lift(block_hash)) is not None:
                self._blocks.tell_state(block_hash, is_kept=False)
                return snapshot
        return self._taken()

    def _taken(self) -> int | None:
        snapshot, lost = self._snapshots.take(self._is_hinted if self._blocks.kept.hints else None)
        if lost is not None:
            self._blocks.tell_state(lost, is_kept=False)
        return snapshot

    def _is_hinted(self, block_hash: BlockHash) -> bool:
        """Whether a retention hint keeps the block with this hash."""
        block = self._blocks.block_of.get(block_hash)
        return block is not None and self._blocks.kept.is_hinted(block)

    def _name(self, sequence: Sequence, end: int, snapshot: int) -> bool:
        """Whether the state behind `end` tokens is of use: their blocks are there."""
        last = end // self._blocks.block_size - 1
        if len(sequence.block_hashes) <= last or not self._blocks.holds(sequence.block_hashes[last]):
            self._snapshots.give_back(snapshot)
            return False
        if self._snapshots.name(sequence.block_hashes[last], snapshot, is_branch=end == sequence.branch):
            self._blocks.tell_state(sequence.block_hashes[last], is_kept=True)
        return True
