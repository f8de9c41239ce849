"""The in-flight book never leaks and never goes negative."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from fairlead.routing.in_flight import InFlightBook, Slot


class BookMachine(RuleBasedStateMachine):
    """Any order of taking, releasing and releasing again, against plain counting."""

    slots = Bundle("slots")

    def __init__(self) -> None:
        super().__init__()
        self.book = InFlightBook()
        self.expected: dict[str, int] = {}

    @rule(target=slots, uid=st.sampled_from("abc"))
    def take(self, uid: str) -> Slot:
        self.expected[uid] = self.expected.get(uid, 0) + 1
        return self.book.take(uid)

    @rule(slot=consumes(slots), times=st.integers(1, 3))
    def release(self, slot: Slot, times: int) -> None:
        self.expected[slot.uid] -= 1
        for _ in range(times):
            slot.release()
        assert slot.released

    @invariant()
    def counts_are_exact(self) -> None:
        self.book.check()
        assert {uid: self.book.count(uid) for uid in "abc"} == {uid: self.expected.get(uid, 0) for uid in "abc"}
        assert self.book.total == sum(self.expected.values())


TestBook = BookMachine.TestCase
TestBook.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_check_finds_a_count_that_does_not_add_up() -> None:
    book = InFlightBook()
    book.take("a")
    book._counts["a"] = 2
    with pytest.raises(AssertionError, match="add up"):
        book.check()
