"""Arrivals: the right number at the right times, the same for the same seed."""

import math
from collections.abc import Iterator
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.client.workload import ArrivalPhase, arrival_times

FOREVER = float("inf")


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.builds(ArrivalPhase, rate=st.floats(0, 50), seconds=st.floats(0.1, 20)), min_size=1, max_size=5),
    st.integers(0, 1000),
)
def test_arrivals_ascend_within_their_phases_and_repeat(phases: list[ArrivalPhase], seed: int) -> None:
    times = list(arrival_times(phases, seed))
    assert times == sorted(times)
    assert times == list(arrival_times(phases, seed))
    began = 0.0
    for phase in phases:
        ends = began + phase.seconds
        if phase.rate == 0:
            assert not [time for time in times if began < time < ends]
        began = ends
    assert all(0 <= time <= began for time in times)


def test_each_phase_has_its_own_rate() -> None:
    times = list(arrival_times([ArrivalPhase(2.0, 500.0), ArrivalPhase(0.0, 100.0), ArrivalPhase(20.0, 500.0)]))
    slow = [time for time in times if time < 500]
    fast = [time for time in times if time > 600]
    assert len(slow) == pytest.approx(1000, rel=0.1)
    assert len(fast) == pytest.approx(10_000, rel=0.05)
    assert len(slow) + len(fast) == len(times)


def test_a_phase_without_end_goes_on_and_seeds_differ() -> None:
    first, second = (list(islice(arrival_times([ArrivalPhase(10.0, FOREVER)], seed), 5000)) for seed in (0, 1))
    assert first[-1] == pytest.approx(500, rel=0.1)
    assert first != second


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 8.0])
def test_gaps_vary_as_the_burstiness_says(burstiness: float) -> None:
    """A gamma distribution of mean 1 and that shape has the variance 1 / shape; 1 is a Poisson process."""
    times = list(islice(arrival_times([ArrivalPhase(1.0, FOREVER)], burstiness=burstiness), 20_000))
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1.0, rel=0.03)
    assert variance == pytest.approx(1.0 / burstiness, rel=0.1)


@pytest.mark.parametrize("burstiness", [0.0, -1.0, math.inf, math.nan])
def test_a_burstiness_that_is_none_is_refused(burstiness: float) -> None:
    with pytest.raises(ValueError, match="burstiness"):
        next(arrival_times([ArrivalPhase(1.0, 1.0)], burstiness=burstiness))


def test_phases_may_be_decided_late() -> None:
    rates = [5.0]

    def phases() -> Iterator[ArrivalPhase]:
        while rates[0] > 0:
            yield ArrivalPhase(rates[0], 0.5)

    arrivals = arrival_times(phases())
    seen = [next(arrivals) for _ in range(50)]
    rates[0] = 0.0
    assert len(list(arrivals)) < 20, "no more than the phase that had begun"
    assert seen[-1] == pytest.approx(10, rel=0.5)


@pytest.mark.parametrize(("rate", "seconds"), [(-1.0, 1.0), (1.0, 0.0)])
def test_a_phase_that_makes_no_sense_is_refused(rate: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="a phase needs"):
        ArrivalPhase(rate, seconds)
