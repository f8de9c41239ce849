"""Waiting for a slot: the fluid of arrivals and slots, and what chance leaves waiting."""

import math
import random
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.autoscaler.waiting import after, share_waiting

numbers = st.floats(0.0, 100.0)


def test_what_comes_faster_than_slots_come_free_waits() -> None:
    """Eight slots, each held for 2 s: four a second come free."""
    assert after(10.0, inside=8.0, per_second=5.0, slots=8.0, held=2.0) == pytest.approx(18.0)
    assert after(10.0, inside=28.0, per_second=3.0, slots=8.0, held=2.0) == pytest.approx(18.0)
    assert after(100.0, inside=28.0, per_second=3.0, slots=8.0, held=2.0) == pytest.approx(6.0)  # those that run
    assert after(3.0, inside=2.0, per_second=5.0, slots=0.0, held=2.0) == pytest.approx(17.0)


def test_slots_fill_before_anything_waits() -> None:
    filled = 2.0 * math.log(10.0 / 2.0)  # of 10 that would run, 8 do
    assert after(filled, inside=0.0, per_second=5.0, slots=8.0, held=2.0) == pytest.approx(8.0)
    assert after(filled + 4.0, inside=0.0, per_second=5.0, slots=8.0, held=2.0) == pytest.approx(12.0)


@settings(deadline=None, max_examples=50)
@given(numbers, numbers, numbers, numbers, st.floats(0.1, 20.0), numbers)
def test_more_requests_never_leave_fewer_and_more_slots_never_leave_more(
    seconds: float, inside: float, rate: float, slots: float, held: float, more: float
) -> None:
    found = after(seconds, inside=inside, per_second=rate, slots=slots, held=held)
    slack = 1e-6 * (1.0 + found)
    assert found >= 0.0
    assert after(seconds, inside=inside + more, per_second=rate, slots=slots, held=held) >= found - slack
    assert after(seconds, inside=inside, per_second=rate + more, slots=slots, held=held) >= found - slack
    assert after(seconds, inside=inside, per_second=rate, slots=slots + more, held=held) <= found + slack


@pytest.mark.matrix
@pytest.mark.parametrize(("slots", "use"), [(4, 0.7), (4, 0.9), (32, 0.9), (1, 0.6)])
@pytest.mark.parametrize("seconds", [0.0, 1.0, 3.0])
def test_as_many_wait_as_of_requests_at_random(slots: int, use: float, seconds: float) -> None:
    """Waits of a queue in virtual time, with lengths as spread as assumed (a gamma distribution)."""
    chance, now, ends, num_late = random.Random(1), 0.0, [0.0] * slots, 0
    for _ in range(60_000):
        now += chance.expovariate(use * slots / 2.0)
        begin = max(now, heappop(ends))
        num_late += begin - now > seconds
        heappush(ends, begin + chance.gammavariate(2.5, 2.0 / 2.5))
    found = share_waiting(seconds, per_second=use * slots / 2.0, slots=slots, held=2.0)
    assert found == pytest.approx(num_late / 60_000, rel=0.25, abs=0.06)


def test_where_more_come_than_leave_all_wait() -> None:
    assert share_waiting(90.0, per_second=2.0, slots=4.0, held=2.0) == 1.0
    assert share_waiting(math.inf, per_second=0.1, slots=4.0, held=2.0) == 0.0


@settings(deadline=None, max_examples=50)
@given(st.floats(0.0, 99.0), st.floats(0.0, 50.0), st.floats(1.0, 400.0), st.floats(0.1, 20.0), st.floats(0.0, 20.0))
def test_the_share_grows_with_requests_and_falls_with_slots(
    seconds: float, rate: float, slots: float, held: float, more: float
) -> None:
    found = share_waiting(seconds, per_second=rate, slots=slots, held=held)
    assert 0.0 <= found <= 1.0
    assert share_waiting(seconds, per_second=rate + more, slots=slots, held=held) >= found * (1.0 - 1e-9)
    assert share_waiting(seconds, per_second=rate, slots=slots + more, held=held) <= found * (1.0 + 1e-9)
    assert share_waiting(seconds + more, per_second=rate, slots=slots, held=held) <= found * (1.0 + 1e-9)
