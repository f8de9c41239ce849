"""Rates and what is known of them: what is certain, and since when more comes than before."""

import random
from itertools import pairwise

import pytest

from fairlead.autoscaler.arrivals import SURGE_SECONDS, Count, Surge, at_least, rate, surge


def seen(*per_second: int) -> Surge:
    """By one gateway that has counted so many requests in each second; the last is now."""
    minute = [Count(sum(per_second[-60:]), min(60, len(per_second)))]
    lately = {
        seconds: [Count(sum(per_second[-int(seconds) :]), min(seconds, len(per_second)))] for seconds in SURGE_SECONDS
    }
    return surge(minute, lately)


def test_a_rise_is_seen_after_three_seconds_and_its_rate_is_that_since_it_began() -> None:
    assert seen(*[0] * 55, 6, 5, 6) == Surge(pytest.approx(17 / 3), 3.0, pytest.approx(17 / 3))
    assert seen(*[1] * 50, 6, 5, 6, 6, 5, 6) == Surge(pytest.approx(34 / 6), 6.0, pytest.approx(34 / 6))
    assert seen(*[4] * 50, *[20] * 4) == Surge(20.0, 4.0, 20.0)


def test_a_queue_makes_less_of_a_rise_enough_and_a_little_more_likely_while_it_goes_on() -> None:
    minute, lately = [Count(150, 60.0)], {3.0: [Count(21, 3.0)]}
    assert surge(minute, lately) == Surge()
    assert surge(minute, lately, queue=[Count(6, 1.0)]) == Surge(7.0, 3.0, pytest.approx((21 + 21**0.5) / 3))
    over = surge(minute, lately, queue=[Count(0, 1.0)])
    assert over.per_second_high == over.per_second > 0.0


def test_what_chance_may_bring_is_no_rise() -> None:
    assert seen(*[4] * 57, 6, 5, 6) == Surge()
    assert seen(*[0] * 59, 1) == Surge()
    assert seen(*[0] * 58, 1, 1) == Surge()
    assert seen() == Surge()


def test_what_was_counted_for_less_than_three_seconds_is_no_rise() -> None:
    assert seen(30, 30) == Surge()


def test_what_a_gateway_counts_right_after_its_start_is_no_rise() -> None:
    """A gateway that is restarted under load has nothing to compare with: what comes is the rate, as it was."""
    for seconds in range(1, 10):
        assert seen(*[30, 33, 27] * seconds) == Surge()
    assert seen(*[2] * 20, *[30] * 4).per_second == 30.0


def test_a_rise_at_one_of_two_gateways_is_one() -> None:
    calm, risen = Count(120, 60.0), Count(180, 60.0)
    found = surge([calm, risen], {5.0: [Count(10, 5.0), Count(80, 5.0)]})
    assert found == Surge(18.0, 5.0, 18.0)
    assert surge([calm, calm], {5.0: [Count(10, 5.0), Count(10, 5.0)]}) == Surge()


@pytest.mark.parametrize("per_second", [0.5, 4.0, 40.0])
def test_an_hour_of_chance_hardly_brings_a_rise(per_second: float) -> None:
    """Requests that come independently of one another: looked at every second, with ten windows each time."""
    chance = random.Random(1)
    times, now = [], 0.0
    while now < 3600.0:
        now += chance.expovariate(per_second)
        times.append(now)
    counts = [0] * 3601
    for each in times:
        counts[min(3600, int(each))] += 1
    risen = [bool(seen(*counts[max(0, end - 60) : end]).per_second) for end in range(60, 3600)]
    assert sum(not before and after for before, after in pairwise(risen)) <= 2


def test_what_is_certain_lies_three_deviations_below() -> None:
    assert rate([Count(40, 10.0), Count(20, 10.0)]) == 6.0
    assert at_least([Count(100, 10.0)]) == pytest.approx(7.0)
    assert at_least([Count(8, 10.0)]) == 0.0
    assert rate([Count(2, 0.1)]) == 2.0  # two at once are no rate
