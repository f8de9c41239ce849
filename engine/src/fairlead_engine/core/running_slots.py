"""The sequences that run: each has a slot, and either a prompt to compute or one token in every step.

The scheduler says who begins, grows and leaves; it owns what happens to a sequence, and this what is only counted.
"""

from bisect import insort_right

import numpy as np

from fairlead_engine.core.waiting_queue import rank
from fairlead_engine.types.batch import Decodes, Numbers
from fairlead_engine.types.sequences import NO_SLOT, ScheduledSequence, Sequence


class DecodingSlots:
    """The sequences that are past their prompts, as arrays by slot: each goes on by one token in every step until it
    ends, and a step in which nothing changes looks at no sequence."""

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


class RunningSlots:
    """Who has which slot, and how far everyone is. Knows no budgets; blocks it only counts."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self._num_slots = num_slots
        self._block_size = block_size
        self.sequences: list[Sequence] = []
        """By rank, so the last one is the one to preempt."""
        self.prefilling: list[Sequence] = []
        """Those whose prompt is not planned to its end, by rank; `decoding` has the others."""
        self.decoding = DecodingSlots(num_slots, block_size)
        self.num_kv_tokens = 0
        """Tokens that are in the cache."""
        self._completed: list[Sequence] = []
        """Those whose prompt the last step planned to its end: until it has a result they have tokens to compute."""
        self._free_slots = list(reversed(range(num_slots)))

    def begin(self, sequence: Sequence) -> None:
        """It gets a slot."""
        sequence.slot = self._free_slots.pop()
        insort_right(self.sequences, sequence, key=rank)
        insort_right(self.prefilling, sequence, key=rank)

    def complete(self, shares: list[ScheduledSequence]) -> None:
        """A step was planned in which these reach the ends of their prompts."""
        self._completed = [item.sequence for item in shares]
        for item in shares:
            self.prefilling.remove(item.sequence)
            self.decoding.begin(item.sequence, item.end)

    def computed(self, sequence: Sequence, end: int) -> None:
        """Its tokens up to `end` are in the cache."""
        self.num_kv_tokens += end - sequence.num_computed_tokens
        sequence.num_computed_tokens = end

    def prefill_again(self, sequence: Sequence) -> None:
        """It gets more tokens to compute, as one whose prompt is not computed to its end."""
        if sequence not in self.prefilling:
            self.decoding.leave(sequence.slot)
            insort_right(self.prefilling, sequence, key=rank)

    def leave(self, sequence: Sequence) -> None:
        """It gives up its slot; `sequences` is for the caller to change, who may do so for many at once."""
        self.num_kv_tokens -= sequence.num_computed_tokens
        if sequence in self.prefilling:
            self.prefilling.remove(sequence)
        self.decoding.leave(sequence.slot)
        self._free_slots.append(sequence.slot)
        sequence.slot = NO_SLOT

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens still to be computed that are not decodes."""
        completed = [sequence for sequence in self._completed if sequence.under_way and sequence.slot != NO_SLOT]
        return _num_prompt_tokens(self.prefilling + completed)

    @property
    def num_reserved_blocks(self) -> int:
        """Blocks that they are sure to want: the rest of their prompts, and one more each.

        Who is admitted leaves these free, or it would soon preempt somebody or be preempted.
        """
        num_wanted = self.decoding.num_reserved_blocks()
        for sequence in self.prefilling:
            num_wanted += -(-sequence.num_tokens // self._block_size) + 1 - len(sequence.block_table)
        return num_wanted

    def check(self) -> None:
        """Raises AssertionError when a slot is leaked or shared, or tokens are counted wrongly."""
        slots = sorted(self._free_slots + [sequence.slot for sequence in self.sequences])
        assert slots == list(range(self._num_slots)), "a slot is leaked or shared"
        self.decoding.check(self.sequences, self.prefilling)
        num_kv_tokens = sum(sequence.num_computed_tokens for sequence in self.sequences)
        assert self.num_kv_tokens == num_kv_tokens, "tokens in the cache are counted wrongly"
        assert self.num_prompt_tokens == _num_prompt_tokens(self.sequences), "a prompt is left uncounted"


def _num_prompt_tokens(sequences: list[Sequence]) -> int:
    """Tokens to compute of those that have more to do than a decode."""
    unfinished = [len(sequence.token_ids) - sequence.num_computed_tokens for sequence in sequences]
    return sum([num_tokens for num_tokens in unfinished if num_tokens > 1])
