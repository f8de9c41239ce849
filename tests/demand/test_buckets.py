"""Buckets: what came in between, and percentiles within buckets."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.signals_message import SECONDS_BOUNDS, count_seconds, no_seconds
from fairlead.demand.buckets import Buckets

BOUNDS = (0.1, 1.0, 10.0)


def buckets(*counts: int) -> Buckets:
    return Buckets(BOUNDS, counts)


def test_a_percentile_lies_within_its_bucket_in_proportion() -> None:
    assert buckets(0, 10, 0, 0).percentile(50) == pytest.approx(0.55)
    assert buckets(10, 10, 0, 0).percentile(50) == pytest.approx(0.1)
    assert buckets(9, 0, 1, 0).percentile(95) == pytest.approx(5.5)


def test_beyond_the_last_bound_the_percentile_is_that_bound() -> None:
    assert buckets(0, 0, 0, 5).percentile(90) == 10.0


def test_nothing_counted_has_no_percentile() -> None:
    assert Buckets.seconds().percentile(90) is None
    assert buckets(0, 0, 0, 0).percentile(90) is None


def test_the_difference_holds_only_what_came_since() -> None:
    assert buckets(5, 4, 0, 1).since(buckets(5, 0, 0, 0)) == buckets(0, 4, 0, 1)
    assert buckets(5, 4, 0, 1).since(Buckets(BOUNDS, ())) == buckets(5, 4, 0, 1)


def test_buckets_of_two_gateways_add_up() -> None:
    assert buckets(1, 1, 1, 0).plus(buckets(0, 1, 0, 3)) == buckets(1, 2, 1, 3)
    assert Buckets(BOUNDS, ()).plus(buckets(1, 2, 3, 4)) == buckets(1, 2, 3, 4)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.001, 500.0), min_size=1, max_size=50), st.integers(1, 99))
def test_a_percentile_of_what_gateways_count_is_right_to_a_bucket(seconds: list[float], percent: int) -> None:
    counted = no_seconds()
    for each in seconds:
        count_seconds(counted, each)
    rank = max(1, -(-len(seconds) * percent // 100))
    exact = sorted(seconds)[rank - 1]
    found = Buckets.seconds(counted).percentile(percent)
    assert found is not None
    assert exact / 1.26 <= found <= exact * 1.26 or exact <= SECONDS_BOUNDS[0]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.integers(1, 99), st.integers(1, 99))
def test_percentiles_grow_with_the_percentage_and_stay_within_the_bounds(counts: list[int], one: int, two: int) -> None:
    seen = buckets(*counts)
    low, high = seen.percentile(min(one, two)), seen.percentile(max(one, two))
    if low is None or high is None:
        assert seen.total == 0
    else:
        assert 0.0 <= low <= high <= 10.0
