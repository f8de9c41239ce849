"""Prompt blocks that are not cached yet but will be, each with the sequence that is going to compute the block.

The scheduler asks `ComingBlocks` whether a waiting prompt had better wait for a prefix under way. Sequences and hashes
only; blocks, tokens and budgets are unknown here.
"""

from collections.abc import Callable, Collection

from fairlead_common.wire.blocks import BlockHash
from fairlead_engine.types.sequences import Sequence


class ComingBlocks:
    """Hash → *maker*: the waiting or running sequence that will compute the block.

    A sequence makes its whole blocks of known tokens, except cached blocks and blocks of an earlier maker. A hash loses
    its maker when any sequence has computed the block: the maker, a sequence that generated the same tokens, or a
    sequence beside the maker. No maker is therefore ever ahead of its hashes. Each block of a sequence is entered and
    removed once; a step costs one look-up per waiting sequence.
    """

    def __init__(self, block_size: int, is_cached: Callable[[BlockHash], bool]) -> None:
        self._block_size = block_size
        self._is_cached = is_cached
        self._makers: dict[BlockHash, Sequence] = {}

    def __len__(self) -> int:
        return len(self._makers)

    def num_coming(self, sequence: Sequence, num_cached: int) -> int:
        """Blocks behind the sequence's `num_cached` ones that a maker will compute and the sequence may share."""
        return self._num_made(sequence, num_cached, must_run=False)

    def expect(self, sequence: Sequence) -> None:
        """The sequence waits, and makes the blocks not expected in the cache."""
        for block_hash in sequence.block_hashes[sequence.num_expected_cached_tokens // self._block_size :]:
            if not self._is_cached(block_hash):
                self._makers.setdefault(block_hash, sequence)

    def begin(self, sequence: Sequence, num_cached: int) -> None:
        """The sequence begins to run, and makes all blocks behind its `num_cached` cached ones."""
        for block_hash in sequence.block_hashes[num_cached:]:
            if not self._is_cached(block_hash):
                self._makers[block_hash] = sequence

    def made(self, sequence: Sequence, start: int, end: int) -> None:
        """The sequence's tokens from `start` to `end` were computed: their blocks need no maker."""
        for block_hash in sequence.block_hashes[start // self._block_size : end // self._block_size]:
            self._makers.pop(block_hash, None)

    def gone(self, sequence: Sequence) -> None:
        """The sequence has ended or was preempted, and makes nothing."""
        for block_hash in sequence.block_hashes[sequence.num_computed_tokens // self._block_size :]:
            if self._makers.get(block_hash) is sequence:
                del self._makers[block_hash]

    def reset(self) -> None:
        """Forgets all makers; only while nothing waits or runs."""
        self._makers.clear()

    def under_way(self, sequence: Sequence, num_cached: int) -> int:
        """Blocks behind the sequence's `num_cached` ones that running sequences of no later priority compute now or
        soon; the rest may get little of each step. The last of the blocks becomes `Sequence.awaited`."""
        num_blocks = self._num_made(sequence, num_cached, must_run=True)
        sequence.awaited = sequence.block_hashes[num_cached + num_blocks - 1] if num_blocks else None
        return num_blocks

    def still_awaited(self, sequence: Sequence) -> bool:
        """Whether the sequence's awaited block is still under way."""
        return sequence.awaited is not None and _is_worth_waiting(sequence, self._makers.get(sequence.awaited))

    def check(self, sequences: Collection[Sequence]) -> None:
        for block_hash, maker in self._makers.items():
            assert not self._is_cached(block_hash), "a block is to come that is cached"
            assert maker in sequences, "the maker of a block is gone"
            num_computed = maker.num_computed_tokens // self._block_size
            assert block_hash in maker.block_hashes[num_computed:], "a block is to come that was made already"

    def _num_made(self, sequence: Sequence, first: int, *, must_run: bool) -> int:
        last = min(sequence.num_sparable_tokens // self._block_size, len(sequence.block_hashes))
        for index in range(first, last):
            maker = self._makers.get(sequence.block_hashes[index])
            if maker is None or maker is sequence or (must_run and not _is_worth_waiting(sequence, maker)):
                return index - first
        return max(0, last - first)


def _is_worth_waiting(sequence: Sequence, maker: Sequence | None) -> bool:
    """Whether the maker runs, and is not of a later priority than `sequence`."""
    return maker is not None and bool(maker.block_table) and maker.priority <= sequence.priority
