"""The sequences that are past their prompts, as arrays by slot: each goes on by one token in every step until it ends.

The scheduler says who begins, grows and leaves; it owns what happens to a sequence, and this what is only counted.
"""

import numpy as np

from fairlead_engine.types.batch import Decodes, Numbers
from fairlead_engine.types.sequences import Sequence


class DecodingSlots:
    """What planning has to know of every slot, so that a step in which nothing changes looks at no sequence."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self._block_size = block_size
        self._sequences = np.full(num_slots, None, object)
        self._is_decoding = np.zeros(num_slots, bool)
        self._ends = np.zeros(num_slots, np.int64)
        """Tokens that are computed, or will be by the step under way; that step chooses the next."""
        self._most = np.zeros(num_slots, np.int64)
        """Tokens with which the sequence ends."""
        self._room = np.zeros(num_slots, np.int64)
        """Tokens that its block table covers."""
        self._going_on: Numbers | None = None
        """What `going_on` has found, while that is true."""

    def begin(self, sequence: Sequence, end: int) -> None:
        """A step has been planned that computes its tokens up to `end` and chooses the next."""
        slot = sequence.slot
        self._sequences[slot] = sequence
        self._is_decoding[slot] = True
        self._ends[slot], self._most[slot] = end, sequence.max_num_tokens
        self._going_on = None
        self.grew(sequence)

    def grew(self, sequence: Sequence) -> None:
        """Its block table has become longer."""
        self._room[sequence.slot] = len(sequence.block_table) * self._block_size

    def is_settled(self, sequence: Sequence) -> bool:
        """Whether it decodes, and no step under way computes a token of it."""
        slot = sequence.slot
        return bool(self._is_decoding[slot]) and int(self._ends[slot]) == sequence.num_computed_tokens

    def pause(self, sequence: Sequence) -> None:
        """Until it is resumed or leaves, no further token of it is planned; nothing happens where it does not
        decode."""
        self._most[sequence.slot] = 0
        self._going_on = None

    def resume(self, sequence: Sequence) -> None:
        """It goes on."""
        self._most[sequence.slot] = sequence.max_num_tokens
        self._going_on = None

    def leave(self, slot: int) -> None:
        """Whoever has the slot gives it up; nothing happens where its sequence is not past its prompt."""
        self._is_decoding[slot] = False
        self._sequences[slot] = None
        self._going_on = None

    @property
    def going_on(self) -> Numbers:
        """Slots of those that have another token to compute: they do not surely end with the step under way."""
        if self._going_on is None:
            self._going_on = np.flatnonzero(self._is_decoding & (self._ends + 1 < self._most))
        return self._going_on

    def without_room(self) -> list[Sequence]:
        """Those that need another block for their next token."""
        slots = self.going_on
        found: list[Sequence] = self._sequences[slots[self._ends[slots] >= self._room[slots]]].tolist()
        return found

    def take(self, grown: list[Sequence]) -> Decodes:
        """Plans one token of each; all of them have room for it. `grown`: whose block tables have become longer."""
        slots = self.going_on
        ends = self._ends[slots] + 1
        self._ends[slots], self._going_on = ends, None
        return Decodes(self._sequences[slots].tolist(), slots, ends, self._most[slots], grown)

    def gained(self, slot: int, num_tokens: int) -> None:
        """Of its drafts so many stood, so that it is further than it was planned to be."""
        self._ends[slot] += num_tokens
        self._going_on = None

    def num_reserved_blocks(self) -> int:
        """Blocks that they are sure to want: for the token that is chosen next, and one more each."""
        slots = np.flatnonzero(self._is_decoding)
        wanted = -(-(self._ends[slots] + 1) // self._block_size) + 1 - self._room[slots] // self._block_size
        return int(np.maximum(wanted, 0).sum())  # drafts leave tables longer than is needed

    def check(self, running: list[Sequence], prefilling: list[Sequence]) -> None:
        """Raises AssertionError unless everybody who runs is in one place."""
        decoding = [sequence for sequence in self._sequences.tolist() if sequence is not None]
        assert len(decoding) == int(self._is_decoding.sum()), "a slot without a sequence decodes"
        assert {id(each) for each in decoding} | {id(each) for each in prefilling} == {id(each) for each in running}
        assert len(decoding) + len(prefilling) == len(running), "a sequence decodes and has a prompt to compute"
        for sequence in decoding:
            assert self._sequences[sequence.slot] is sequence, "a sequence decodes in another's slot"
            assert self._room[sequence.slot] == len(sequence.block_table) * self._block_size, "a table grew unnoticed"
