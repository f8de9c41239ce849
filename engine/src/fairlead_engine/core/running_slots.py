"""The running sequences: each has a slot, and either a prompt to compute or one token in every step.

The scheduler decides who begins, grows and leaves, and changes sequences; here slots and tokens are counted.
"""

from bisect import insort_right

import numpy as np

from fairlead_engine.core.waiting_queue import rank
from fairlead_engine.types.batch import Decodes, Numbers
from fairlead_engine.types.sequences import NO_SLOT, ScheduledSequence, Sequence


class DecodingSlots:
    """Sequences past their prompts, as arrays by slot: one token in every step, which touches no sequence."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self._block_size = block_size
        self._sequences = np.full(num_slots, None, object)
        self._is_decoding = np.zeros(num_slots, bool)
        self._ends = np.zeros(num_slots, np.int64)
        """Tokens computed, including the step under way, which chooses the next token."""
        self._most = np.zeros(num_slots, np.int64)
        """Tokens with which the sequence ends."""
        self._room = np.zeros(num_slots, np.int64)
        """Tokens that its block table covers."""
        self._going_on: Numbers | None = None
        """Cached result of `going_on`; None = stale."""

    def begin(self, sequence: Sequence, end: int) -> None:
        """A planned step computes the sequence's tokens up to `end` and chooses the next."""
        slot = sequence.slot
        self._sequences[slot] = sequence
        self._is_decoding[slot] = True
        self._ends[slot], self._most[slot] = end, sequence.max_num_tokens
        self._going_on = None
        self.grew(sequence)

    def grew(self, sequence: Sequence) -> None:
        self._room[sequence.slot] = len(sequence.block_table) * self._block_size

    def is_settled(self, sequence: Sequence) -> bool:
        """Whether the sequence decodes and the step under way computes no token for it."""
        slot = sequence.slot
        return bool(self._is_decoding[slot]) and int(self._ends[slot]) == sequence.num_computed_tokens

    def pause(self, sequence: Sequence) -> None:
        """Plans no further token of the sequence until `resume` or `leave`; ignored where it does not decode."""
        self._most[sequence.slot] = 0
        self._going_on = None

    def resume(self, sequence: Sequence) -> None:
        self._most[sequence.slot] = sequence.max_num_tokens
        self._going_on = None

    def leave(self, slot: int) -> None:
        """Frees the slot; nothing for a sequence that is still prefilling."""
        self._is_decoding[slot] = False
        self._sequences[slot] = None
        self._going_on = None

    @property
    def going_on(self) -> Numbers:
        """Slots with another token to compute: their sequences do not surely end with the step under way."""
        if self._going_on is None:
            self._going_on = np.flatnonzero(self._is_decoding & (self._ends + 1 < self._most))
        return self._going_on

    def without_room(self) -> list[Sequence]:
        """Sequences that need another block for their next token."""
        slots = self.going_on
        found: list[Sequence] = self._sequences[slots[self._ends[slots] >= self._room[slots]]].tolist()
        return found

    def take(self, grown: list[Sequence]) -> Decodes:
        """Plans one token of each sequence that goes on; all have room. `grown`: sequences with longer block tables."""
        slots = self.going_on
        ends = self._ends[slots] + 1
        self._ends[slots], self._going_on = ends, None
        return Decodes(self._sequences[slots].tolist(), slots, ends, self._most[slots], grown)

    def gained(self, slot: int, num_tokens: int) -> None:
        """`num_tokens` drafts were accepted beyond the planned token."""
        self._ends[slot] += num_tokens
        self._going_on = None

    def num_reserved_blocks(self) -> int:
        """Blocks that decoding sequences will surely want: for the token chosen next, and one more each."""
        slots = np.flatnonzero(self._is_decoding)
        wanted = -(-(self._ends[slots] + 1) // self._block_size) + 1 - self._room[slots] // self._block_size
        return int(np.maximum(wanted, 0).sum())  # drafts leave tables longer than is needed

    def check(self, running: list[Sequence], prefilling: list[Sequence]) -> None:
        decoding = [sequence for sequence in self._sequences.tolist() if sequence is not None]
        assert len(decoding) == int(self._is_decoding.sum()), "a slot without a sequence decodes"
        assert {id(each) for each in decoding} | {id(each) for each in prefilling} == {id(each) for each in running}
        assert len(decoding) + len(prefilling) == len(running), "a sequence decodes and has a prompt to compute"
        for sequence in decoding:
            assert self._sequences[sequence.slot] is sequence, "a sequence decodes in another's slot"
            assert self._room[sequence.slot] == len(sequence.block_table) * self._block_size, "a table grew unnoticed"


class RunningSlots:
    """Slots of all running sequences and their progress. Blocks are only counted; budgets are unknown here."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self._num_slots = num_slots
        self._block_size = block_size
        self.sequences: list[Sequence] = []
        """By rank: the last one is preempted first."""
        self.prefilling: list[Sequence] = []
        """By rank: sequences whose prompt is not planned to the end; `decoding` has all others."""
        self.decoding = DecodingSlots(num_slots, block_size)
        self.num_kv_tokens = 0
        self._completed: list[Sequence] = []
        """Sequences whose prompt the last step planned to the end; their tokens count until the step has a result."""
        self._free_slots = list(reversed(range(num_slots)))

    def begin(self, sequence: Sequence) -> None:
        sequence.slot = self._free_slots.pop()
        insort_right(self.sequences, sequence, key=rank)
        insort_right(self.prefilling, sequence, key=rank)

    def complete(self, shares: list[ScheduledSequence]) -> None:
        """A step was planned in which these shares reach the ends of their prompts."""
        self._completed = [item.sequence for item in shares]
        for item in shares:
            self.prefilling.remove(item.sequence)
            self.decoding.begin(item.sequence, item.end)

    def computed(self, sequence: Sequence, end: int) -> None:
        """The sequence's tokens up to `end` are in the cache."""
        self.num_kv_tokens += end - sequence.num_computed_tokens
        sequence.num_computed_tokens = end

    def prefill_again(self, sequence: Sequence) -> None:
        """The sequence gets more tokens to compute, like a prompt not planned to the end."""
        if sequence not in self.prefilling:
            self.decoding.leave(sequence.slot)
            insort_right(self.prefilling, sequence, key=rank)

    def leave(self, sequence: Sequence) -> None:
        """Frees the slot; the caller removes the sequence from `sequences`, many at once."""
        self.num_kv_tokens -= sequence.num_computed_tokens
        if sequence in self.prefilling:
            self.prefilling.remove(sequence)
        self.decoding.leave(sequence.slot)
        self._free_slots.append(sequence.slot)
        sequence.slot = NO_SLOT

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens still to be computed, without decodes."""
        completed = [sequence for sequence in self._completed if sequence.under_way and sequence.slot != NO_SLOT]
        return _num_prompt_tokens(self.prefilling + completed)

    @property
    def num_reserved_blocks(self) -> int:
        """Blocks that running sequences will surely want: the rest of their prompts, and one more each. An admission
        leaves these blocks free, and thereby avoids an early preemption."""
        num_wanted = self.decoding.num_reserved_blocks()
        for sequence in self.prefilling:
            num_wanted += -(-sequence.num_tokens // self._block_size) + 1 - len(sequence.block_table)
        return num_wanted

    def check(self) -> None:
        slots = sorted(self._free_slots + [sequence.slot for sequence in self.sequences])
        assert slots == list(range(self._num_slots)), "a slot is leaked or shared"
        self.decoding.check(self.sequences, self.prefilling)
        num_kv_tokens = sum(sequence.num_computed_tokens for sequence in self.sequences)
        assert self.num_kv_tokens == num_kv_tokens, "tokens in the cache are counted wrongly"
        assert self.num_prompt_tokens == _num_prompt_tokens(self.sequences), "a prompt is left uncounted"


def _num_prompt_tokens(sequences: list[Sequence]) -> int:
    """Tokens to compute of sequences with more than a decode to do."""
    unfinished = [len(sequence.token_ids) - sequence.num_computed_tokens for sequence in sequences]
    return sum([num_tokens for num_tokens in unfinished if num_tokens > 1])
