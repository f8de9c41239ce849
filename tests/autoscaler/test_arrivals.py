"""Rates and what is known of them: what is certain, and since when more comes than before."""

import math
import random
from itertools import pairwise

import pytest

from fairlead.autoscaler.arrivals import LATELY_SECONDS, Count, Recent, at_least, rate, recent, risen


def seen(*per_second: int, is_queue: bool = False) -> float:
    """By one gateway that has counted so many requests in each second; the last is now."""
    minute = [Count(sum(per_second[-60:]), min(60, len(per_second)))]
    counts = {
        seconds: Count(sum(per_second[-int(seconds) :]), min(seconds, len(per_second))) for seconds in LATELY_SECONDS
    }
    found = (recent(seconds, [count], minute) for seconds, count in counts.items())
    return risen([each for each in found if each is not None], is_queue=is_queue)


def half_less(number: int, seconds: float) -> float:
    """Half a standard deviation less."""
    return (number - math.sqrt(number) / 2.0) / seconds


def test_a_rise_is_seen_after_three_seconds_and_its_rate_is_that_since_it_began() -> None:
    assert seen(*[0] * 55, 6, 5, 6) == pytest.approx(half_less(17, 3.0))
    assert seen(*[1] * 52, 6, 5, 6, 6, 5, 6, 5, 6) == pytest.approx(half_less(45, 8.0))
    assert seen(*[4] * 50, *[20] * 5) == pytest.approx(half_less(100, 5.0))


def test_a_queue_makes_less_of_a_rise_enough() -> None:
    assert seen(*[2] * 57, 7, 7, 7) == 0.0
    assert seen(*[2] * 57, 7, 7, 7, is_queue=True) == pytest.approx(half_less(21, 3.0))


def test_what_chance_may_bring_is_no_rise() -> None:
    assert seen(*[4] * 57, 6, 5, 6) == 0.0
    assert seen(*[0] * 59, 1) == 0.0
    assert seen(*[0] * 58, 1, 1) == 0.0
    assert seen() == 0.0


def test_what_was_counted_for_less_than_three_seconds_is_no_rise() -> None:
    assert seen(30, 30) == 0.0


def test_what_a_gateway_counts_right_after_its_start_is_no_rise() -> None:
    """A gateway that is restarted under load has nothing to compare with: what comes is the rate, as it was."""
    for seconds in range(1, 10):
        assert seen(*[30, 33, 27] * seconds) == 0.0
    assert seen(*[2] * 20, *[30] * 5) == pytest.approx(half_less(150, 5.0))


def test_a_rise_at_one_of_two_gateways_is_one() -> None:
    calm, more = Count(120, 60.0), Count(180, 60.0)
    found = recent(5.0, [Count(10, 5.0), Count(80, 5.0)], [calm, more])
    assert found is not None and risen([found], is_queue=False) == pytest.approx(half_less(90, 5.0))
    even = recent(5.0, [Count(10, 5.0), Count(10, 5.0)], [calm, calm])
    assert even is not None and risen([even], is_queue=False) == 0.0


def test_a_rate_may_be_taken_for_less_but_never_below_none() -> None:
    assert Recent(10.0, 4.0, 1.0).less(1.5) == 2.5
    assert Recent(10.0, 4.0, 1.0).less(5.0) == 0.0


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
    risen = [bool(seen(*counts[max(0, end - 60) : end])) for end in range(60, 3600)]
    assert sum(not before and after for before, after in pairwise(risen)) <= 2


def test_what_is_certain_lies_three_deviations_below() -> None:
    assert rate([Count(40, 10.0), Count(20, 10.0)]) == 6.0
    assert at_least([Count(100, 10.0)]) == pytest.approx(7.0)
    assert at_least([Count(8, 10.0)]) == 0.0
    assert rate([Count(2, 0.1)]) == 2.0  # two at once are no rate


def test_beside_a_steady_rate_a_short_count_is_chance_until_it_is_far_above() -> None:
    """4 requests/s for ten minutes; 6/s for 8 s are 2.6 deviations above, and 9/s are 6."""
    burst, surge, long = (Recent(seconds, rate, 0.5, 9.0) for seconds, rate in ((8.0, 6.0), (8.0, 9.0), (60.0, 4.6)))
    beside = [each.beside(4.0, 600.0, is_queue=True) for each in (burst, surge, long)]
    assert [each.per_second for each in beside] == [4.0, 9.0, 4.6]
    assert [each.evidence > 0.0 for each in beside] == [False, True, False]
