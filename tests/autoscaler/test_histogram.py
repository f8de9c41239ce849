"""Histograms: what was counted in between, and percentiles within buckets."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.autoscaler.histogram import Histogram

BOUNDS = (0.1, 1.0, 10.0, math.inf)


def histogram(*counts: float) -> Histogram:
    return Histogram(tuple(zip(BOUNDS, counts, strict=True)))


def test_a_percentile_lies_within_its_bucket_in_proportion() -> None:
    assert histogram(0, 10, 10, 10).percentile(50) == pytest.approx(0.55)
    assert histogram(10, 20, 20, 20).percentile(50) == pytest.approx(0.1)
    assert histogram(9, 9, 10, 10).percentile(95) == pytest.approx(5.5)


def test_beyond_the_last_bound_the_percentile_is_that_bound() -> None:
    assert histogram(0, 0, 0, 5).percentile(90) == 10.0


def test_nothing_counted_has_no_percentile() -> None:
    assert Histogram().percentile(90) is None
    assert histogram(0, 0, 0, 0).percentile(90) is None


def test_the_difference_holds_only_what_came_since() -> None:
    assert histogram(5, 9, 9, 9).since(histogram(5, 5, 5, 5)) == histogram(0, 4, 4, 4)


@pytest.mark.parametrize("earlier", [histogram(9, 9, 9, 9), Histogram(), Histogram(((0.5, 1.0), (math.inf, 1.0)))])
def test_counts_that_began_anew_all_count(earlier: Histogram) -> None:
    assert histogram(1, 2, 3, 3).since(earlier) == histogram(1, 2, 3, 3)


def test_histograms_of_two_gateways_add_up() -> None:
    assert histogram(1, 2, 3, 3).plus(histogram(0, 1, 1, 4)) == histogram(1, 3, 4, 7)
    assert histogram(1, 2, 3, 3).plus(Histogram()) == histogram(1, 2, 3, 3)


def test_of_two_with_other_bounds_the_one_that_counted_more_stands() -> None:
    other = Histogram(((0.5, 1.0), (math.inf, 9.0)))
    assert histogram(1, 2, 3, 3).plus(other) == other


counts = st.lists(st.integers(0, 50), min_size=4, max_size=4).map(
    lambda steps: histogram(*(float(sum(steps[: number + 1])) for number in range(4)))
)


@settings(deadline=None, max_examples=100)
@given(counts, st.integers(1, 99), st.integers(1, 99))
def test_percentiles_grow_with_the_percentage_and_stay_within_the_bounds(seen: Histogram, one: int, two: int) -> None:
    low, high = seen.percentile(min(one, two)), seen.percentile(max(one, two))
    if low is None or high is None:
        assert seen.total == 0
    else:
        assert 0.0 <= low <= high <= 10.0
