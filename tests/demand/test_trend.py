"""Trends: what grows is extended, a step and chance are not."""

import random

import pytest

from fairlead.demand.trend import MOST_GROWTH, Sample, back, expected, grown


def samples(*per_second: float) -> list[Sample]:
    return [Sample(10.0 * number, each) for number, each in enumerate(per_second)]


def test_a_growth_goes_on() -> None:
    ramp = samples(*(5.0 + number for number in range(12)))  # 0.1/s more each second
    assert expected(ramp, ahead=30.0) == pytest.approx(16.0 + 3.0, rel=0.1)
    assert expected(ramp, ahead=600.0) == pytest.approx(MOST_GROWTH * 14.5)


def test_a_step_is_no_trend() -> None:
    """Its line would go to 15."""
    for number in range(1, 12):
        assert expected(samples(*[5.0] * (12 - number), *[10.0] * number), ahead=30.0) <= 13.0


def test_a_growth_that_may_only_pause_keeps_what_it_needs() -> None:
    """No growth for the newest third: little is sure, yet more is possible."""
    paused = samples(*(5.0 + 0.5 * number for number in range(12)), *[11.0] * 6)
    assert expected(paused, ahead=60.0) < 13.0
    assert expected(paused, ahead=60.0, is_sure=False) > 14.0


def test_chance_is_hardly_ever_a_trend() -> None:
    chance, num_found = random.Random(3), 0
    for _ in range(1000):
        counts = [sum(chance.random() < 0.04 for _ in range(1000)) / 10.0 for _ in range(12)]
        num_found += expected(samples(*counts), ahead=30.0) > 0.0
    assert num_found <= 5


def test_what_falls_or_is_little_known_is_no_trend() -> None:
    assert expected(samples(*range(20, 8, -1)), ahead=30.0) == 0.0
    assert expected(samples(1.0, 2.0, 3.0), ahead=30.0) == 0.0


def test_it_looks_back_for_some_starts() -> None:
    """A growth that began two minutes ago, after an hour at one rate."""
    hour = samples(*[5.0] * 348, *(5.0 + number / 2.0 for number in range(1, 13)))
    assert [back(start) for start in (5.0, 60.0)] == [135.0, 180.0]
    sure, perhaps = grown(hour, 5.0)
    assert 11.0 < sure <= perhaps
    assert grown(hour, 300.0)[0] < 10.0, "ten minutes were level for the most part"
    assert grown([], 5.0) == (0.0, 0.0)
