"""Blocks of prompts that are not cached yet but will be: which sequence is going to compute each.

The scheduler keeps one `ComingBlocks` and asks it whether a waiting prompt had better wait for a prefix under way. It
knows sequences and hashes, and asks whether one is cached; not blocks, tokens or budgets.
"""

from collections.abc import Callable, Collection

from fairlead_engine.types.sequences import Sequence
from fairlead_protocol.blocks import BlockHash


class ComingBlocks:
    """For each hash that is to come the one sequence that will compute it: its *maker*, waiting or running.

    A sequence makes the whole blocks it knows the tokens of and that neither the cache nor an earlier maker spares it.
    What is cached is never to come: a hash has no maker from the moment anybody has computed it, be it its maker, a
    sequence that has generated the same tokens, or one that runs beside it. So no maker is ever ahead of its hashes.
    Each block of a sequence is entered and removed once; what is asked at every step is one look-up for each waiting
    sequence.
    """

    def __init__(self, block_size: int, is_cached: Callable[[BlockHash], bool]) -> None:
        self._block_size = block_size
        self._is_cached = is_cached
        self._makers: dict[BlockHash, Sequence] = {}

    def __len__(self) -> int:
        return len(self._makers)

    def num_coming(self, sequence: Sequence, num_cached: int) -> int:
        """How many blocks that the sequence may share will follow its `num_cached` ones, by whatever maker."""
        return self._num_made(sequence, num_cached, must_run=False)

    def expect(self, sequence: Sequence) -> None:
        """The sequence waits, and will make all that nothing is expected to spare it."""
        for block_hash in sequence.block_hashes[sequence.num_expected_cached_tokens // self._block_size :]:
            if not self._is_cached(block_hash):
                self._makers.setdefault(block_hash, sequence)

    def begin(self, sequence: Sequence, num_cached: int) -> None:
        """The sequence begins to run: it makes everything behind its cached blocks that is not cached either."""
        for block_hash in sequence.block_hashes[num_cached:]:
            if not self._is_cached(block_hash):
                self._makers[block_hash] = sequence

    def made(self, sequence: Sequence, start: int, end: int) -> None:
        """Its tokens from `start` to `end` have been computed: whoever else was to make these blocks need not."""
        for block_hash in sequence.block_hashes[start // self._block_size : end // self._block_size]:
            self._makers.pop(block_hash, None)

    def gone(self, sequence: Sequence) -> None:
        """The sequence makes nothing any more: it has ended, or was preempted."""
        for block_hash in sequence.block_hashes[sequence.num_computed_tokens // self._block_size :]:
            if self._makers.get(block_hash) is sequence:
                del self._makers[block_hash]

    def reset(self) -> None:
        """Nobody waits or runs, so nothing is to come."""
        self._makers.clear()

    def under_way(self, sequence: Sequence, num_cached: int) -> int:
        """How many of the blocks that follow its `num_cached` ones others that run are computing now or soon.

        Only others of its priority or before it: the rest may get little of each step. When there are any, the last of
        their blocks becomes what the sequence awaits.
        """
        num_blocks = self._num_made(sequence, num_cached, must_run=True)
        sequence.awaited = sequence.block_hashes[num_cached + num_blocks - 1] if num_blocks else None
        return num_blocks

    def still_awaited(self, sequence: Sequence) -> bool:
        """Whether what the sequence awaits is still under way."""
        return sequence.awaited is not None and _is_worth_waiting(sequence, self._makers.get(sequence.awaited))

    def check(self, sequences: Collection[Sequence]) -> None:
        """Raises AssertionError when a block is cached already, or its maker is gone or past it."""
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
    """Whether a maker runs, and will soon be done as far as `sequence` can tell."""
    return maker is not None and bool(maker.block_table) and maker.priority <= sequence.priority
