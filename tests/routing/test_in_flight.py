"""The in-flight book never leaks, never goes negative, and knows what a load line does not include."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from fairlead.routing.in_flight import InFlightBook, InFlightRequest
from fairlead.routing.predictor import prefill_work
from fairlead.routing.replica import Decision
from fairlead_testing.routing import make_replica


def take(book: InFlightBook, uid: str, now: float = 0.0, *, num_seen: int = 0, **slot_has) -> InFlightRequest:
    sent = InFlightRequest(Decision(make_replica(uid), "", dispatch=book.next_dispatch(uid, num_seen)), now, **slot_has)
    book.take(sent)
    return sent


class BookMachine(RuleBasedStateMachine):
    """Any order of taking, releasing and releasing again, against plain lists."""

    slots = Bundle("slots")

    def __init__(self) -> None:
        super().__init__()
        self.book = InFlightBook()
        self.now = 0.0
        self.open: list[InFlightRequest] = []
        self.ended: list[tuple[float, InFlightRequest]] = []
        self.num_taken = dict.fromkeys("abc", 0)

    @rule(target=slots, uid=st.sampled_from("abc"), num_seqs=st.integers(1, 3))
    def take(self, uid: str, num_seqs: int) -> InFlightRequest:
        sent = take(self.book, uid, self.now, num_seqs=num_seqs)
        self.num_taken[uid] += 1
        assert sent.dispatch == self.num_taken[uid]
        self.open.append(sent)
        return sent

    @rule(sent=consumes(slots), times=st.integers(1, 3))
    def release(self, sent: InFlightRequest, times: int) -> None:
        assert [self.book.release(sent, self.now) for _ in range(times)] == [True] + [False] * (times - 1)
        assert sent.released
        self.open.remove(sent)
        self.ended.append((self.now, sent))

    @rule(sent=slots, times=st.integers(1, 2))
    def first_token(self, sent: InFlightRequest, times: int) -> None:
        is_first = sent.first_token_at is None
        assert [self.book.first_token(sent, self.now) for _ in range(times)] == [is_first, False][:times]

    @rule(seconds=st.floats(0, 2))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(uid=st.sampled_from("abc"), num_seen=st.integers(0, 20))
    def a_load_line_includes_some(self, uid: str, num_seen: int) -> None:
        unseen = [sent for sent in self.open if sent.uid == uid and sent.dispatch > num_seen]
        assert list(self.book.unseen(uid, num_seen)) == unseen
        since = self.now - 2.5
        ended = [sent for at, sent in self.ended if at > since and sent.uid == uid and sent.dispatch <= num_seen]
        assert self.book.num_ended(uid, num_seen, since) == sum(sent.num_seqs for sent in ended)

    @invariant()
    def counts_are_exact(self) -> None:
        self.book.check()
        for uid in "abc":
            assert self.book.count(uid) == sum(sent.uid == uid for sent in self.open)
        assert self.book.total == len(self.open)


TestBook = BookMachine.TestCase
TestBook.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_numbers_go_on_while_a_replica_that_left_still_has_requests() -> None:
    book = InFlightBook()
    take(book, "a")
    sent = take(book, "a")
    book.keep_only(frozenset())
    assert take(book, "a").dispatch == 3
    assert not sent.released


def test_numbers_begin_above_what_the_engine_has_seen_of_this_gateway() -> None:
    book = InFlightBook()
    book.release(take(book, "a"), 0.0)
    book.keep_only(frozenset("b"))
    assert take(book, "a", num_seen=7).dispatch == 8
    assert take(book, "a", num_seen=7).dispatch == 9


def test_contexts_are_those_of_prompts_without_a_first_token() -> None:
    book = InFlightBook()
    assert book.context_per_token("a") is None
    long = take(book, "a", work=prefill_work(1000, 10))
    short = take(book, "a", work=prefill_work(0, 30))
    assert book.context_per_token("a") == pytest.approx((10 * 1000 + 45 + 435) / 40)
    book.first_token(long, 1.0)
    assert book.context_per_token("a") == pytest.approx(435 / 30)
    book.release(short, 2.0)
    assert book.context_per_token("a") is None


def test_what_ended_long_ago_is_forgotten() -> None:
    book = InFlightBook()
    for now in range(1000):
        book.release(take(book, "a", float(now)), float(now))
    assert len(book._ended["a"]) <= 4


def test_check_finds_a_count_that_does_not_add_up() -> None:
    book = InFlightBook()
    take(book, "a")
    book._num_suspects = 1
    with pytest.raises(AssertionError, match="0 suspects, not 1"):
        book.check()


def test_check_finds_a_first_token_that_was_not_counted() -> None:
    book = InFlightBook()
    take(book, "a").first_token_at = 1.0
    with pytest.raises(AssertionError, match="first token"):
        book.check()


def test_check_finds_a_slot_that_was_released_elsewhere() -> None:
    book = InFlightBook()
    take(book, "a").released = True
    with pytest.raises(AssertionError, match="released"):
        book.check()
