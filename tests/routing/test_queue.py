"""The line: first come first served, bounded, and places are kept."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from fairlead.routing.queue import PoolQueue, Ticket

MAX_WAITING, MAX_BYTES = 4, 100


def issue(queue: PoolQueue, num_bytes: int, priority: int = 0) -> Ticket:
    return Ticket(queue.next_number(), num_bytes, priority)


class QueueMachine(RuleBasedStateMachine):
    """Newcomers, heads that go, some that come back, some that give up; against a sorted list."""

    away = Bundle("away")

    def __init__(self) -> None:
        super().__init__()
        self.queue = PoolQueue(max_waiting=MAX_WAITING, max_bytes=MAX_BYTES)
        self.inside: list[Ticket] = []
        self.now = 0.0

    @rule(target=away, num_bytes=st.integers(0, 150), priority=st.integers(-1, 1))
    def arrive(self, num_bytes: int, priority: int):
        ticket = issue(self.queue, num_bytes, priority)
        held = sum(each.num_bytes for each in self.inside)
        may = not self.inside or (len(self.inside) < MAX_WAITING and held + num_bytes <= MAX_BYTES)
        assert self.queue.has_room(num_bytes) == may
        if not may:
            return multiple()
        self.queue.enter(ticket, self.now)
        self.inside.append(ticket)
        return ticket

    @rule(seconds=st.floats(0, 10))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def head_goes(self) -> None:
        if self.inside:
            expected = min(self.inside, key=lambda ticket: (ticket.priority, ticket.number))
            assert next(iter(self.queue), None) is expected
            self.queue.leave(expected, self.now)
            self.inside.remove(expected)

    @rule(ticket=away)
    def comes_back_or_gives_up(self, ticket: Ticket) -> None:
        if ticket in self.inside:
            self.queue.leave(ticket, self.now)
            self.inside.remove(ticket)
        else:
            waited = ticket.waited_seconds
            self.queue.enter(ticket, self.now)
            assert ticket.waiting_since == pytest.approx(self.now - waited)
            self.inside.append(ticket)

    @invariant()
    def order_and_bytes_hold(self) -> None:
        self.queue.check()
        assert list(self.queue) == sorted(self.inside, key=lambda ticket: (ticket.priority, ticket.number))
        assert self.queue.num_bytes == sum(ticket.num_bytes for ticket in self.inside)
        oldest = max((self.now - (each.waiting_since or 0.0) for each in self.inside), default=0.0)
        assert self.queue.oldest_wait_seconds(self.now) == pytest.approx(max(0.0, oldest))


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_a_ticket_that_returns_stands_before_those_that_came_after_it() -> None:
    queue = PoolQueue(max_waiting=2, max_bytes=10)
    first, second, third = (issue(queue, 1) for _ in range(3))
    queue.enter(second, 1.0)
    queue.enter(third, 2.0)
    queue.enter(first, 3.0)
    assert list(queue) == [first, second, third]


def test_time_waited_before_counts_again_after_a_return() -> None:
    queue = PoolQueue(max_waiting=2, max_bytes=10)
    ticket = issue(queue, 1)
    queue.enter(ticket, 10.0)
    queue.leave(ticket, 14.0)
    queue.enter(ticket, 100.0)
    assert ticket.waiting_since == 96.0
    queue.leave(ticket, 101.0)
    assert ticket.waited_seconds == 5.0


def test_one_request_of_any_size_may_wait_in_an_empty_line() -> None:
    queue = PoolQueue(max_waiting=2, max_bytes=10)
    assert queue.has_room(1000)
    queue.enter(issue(queue, 1000), 0.0)
    assert not queue.has_room(1)


def test_leaving_twice_is_leaving_once() -> None:
    queue = PoolQueue(max_waiting=2, max_bytes=10)
    ticket = issue(queue, 1)
    queue.enter(ticket, 0.0)
    queue.leave(ticket, 1.0)
    queue.leave(ticket, 5.0)
    assert ticket.waited_seconds == 1.0
    assert len(queue) == 0
