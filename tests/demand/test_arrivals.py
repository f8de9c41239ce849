"""What is believed of a rate: against the exact sums of Bayes' rule, against tables of chi-square, and over loads
that stay, jump, and come at random."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.demand.arrivals import CHANGE_SECONDS, SPREAD, Arrivals, Count, Regime


def counted(*numbers: float, seconds: float = 1.0, known: Arrivals | None = None) -> Arrivals:
    arrivals = known or Arrivals()
    for number in numbers:
        arrivals = arrivals.counting(Count(number, seconds))
    return arrivals


def at_random(rate: float, seconds: int, seed: int = 0) -> list[int]:
    """Independent arrivals in each of so many seconds."""
    chance = random.Random(seed)
    numbers = []
    for _ in range(seconds):
        number, passed = 0, chance.expovariate(rate)
        while passed < 1.0:
            number, passed = number + 1, passed + chance.expovariate(rate)
        numbers.append(number)
    return numbers


@pytest.mark.parametrize("shape", [0.5, 1.0, 4.0, 300.0])
def test_a_regime_is_the_gamma_distribution_of_its_counts(shape: float) -> None:
    """A quarter of the tables' quantiles of chi-square with twice as many degrees of freedom as the shape."""
    known = {
        0.5: ((0.113734, 0.5), (0.676386, 0.1)),
        1.0: ((0.346574, 0.5), (1.151293, 0.1)),
        4.0: ((1.836030, 0.5), (3.340392, 0.1)),
        300.0: ((149.833366, 0.5), (161.191600, 0.1)),
    }
    mean, narrow = Regime(1.0, 0.0, shape, 2.0, 0.0).normal
    for rate, probability in known[shape]:
        above = math.erfc((rate ** (1.0 / 3.0) - mean) * narrow) / 2.0
        assert above == pytest.approx(probability, abs=0.03 if shape < 1.0 else 0.01)


def test_the_likelihoods_of_all_counts_sum_up_to_one() -> None:
    regime = Regime(1.0, 0.0, 7.5, 2.0, 0.0)
    assert sum(regime.likelihood(Count(number, 1.0)) for number in range(200)) == pytest.approx(1.0)


def test_the_probabilities_are_those_of_bayes_rule() -> None:
    """The first regime, or one begun with the second or the third count."""
    one, two, three = 4, 5, 30
    arrivals = counted(one, two, three, known=Arrivals(squares=1e12, sums=1e12))  # surely independent requests

    def alone(first: tuple[float, float], *numbers: int) -> float:
        """The probability of the counts at one rate."""
        (shape, seconds), total, length = first, sum(numbers), len(numbers)
        log = math.lgamma(shape + total) - math.lgamma(shape) + shape * math.log(seconds)
        log -= (shape + total) * math.log(seconds + length) + sum(math.lgamma(each + 1.0) for each in numbers)
        return math.exp(log)

    begun = (SPREAD, SPREAD / one)  # around the first second's rate
    mean = [(SPREAD + one) / (SPREAD / one + 1.0)]
    change = [1.0 / (CHANGE_SECONDS + 1.0), 1.0 / (CHANGE_SECONDS + 2.0)]
    second = (SPREAD, SPREAD / mean[0])
    stays, jumps = (1.0 - change[0]) * alone(begun, one, two) / alone(begun, one), change[0] * alone(second, two)
    after = [stays / (stays + jumps), jumps / (stays + jumps)]
    rates = [(SPREAD + one + two) / (SPREAD / one + 2.0), (SPREAD + two) / (second[1] + 1.0)]
    third = (SPREAD, SPREAD / (after[0] * rates[0] + after[1] * rates[1]))
    weights = [
        after[0] * (1.0 - change[1]) * alone(begun, one, two, three) / alone(begun, one, two),
        after[1] * (1.0 - 2.0 * change[1]) * alone(second, two, three) / alone(second, two),
        (after[0] + 2.0 * after[1]) * change[1] * alone(third, three),
    ]
    found = [each.probability for each in arrivals.regimes]
    assert found == pytest.approx([each / sum(weights) for each in weights])


@pytest.mark.parametrize("rate", [0.3, *(pytest.param(rate, marks=pytest.mark.compute) for rate in (4.0, 60.0))])
def test_a_steady_rate_is_known_ever_more_closely(rate: float) -> None:
    numbers = at_random(rate, 3600)
    young, old = counted(*numbers[:60]), counted(*numbers)
    assert old.high - old.likely < young.high - young.likely
    assert old.likely < 1.1 * rate + 0.05
    assert old.steady_seconds > 1800.0


@pytest.mark.parametrize("times", [3.0, pytest.param(6.0, marks=pytest.mark.compute)])
def test_a_jump_is_believed_within_seconds_the_later_the_longer_nothing_has_changed(times: float) -> None:
    def seconds_to(before: int) -> int:
        known = counted(*at_random(2.0, before, 1))
        for second, number in enumerate(at_random(2.0 * times, 60, 2), 1):
            known = counted(number, known=known)
            if known.likely > 0.7 * 2.0 * times:
                assert known.steady_seconds < before
                return second
        return 60

    young, old = seconds_to(60), seconds_to(3600)
    assert young <= old <= 12


def test_a_rate_that_changes_often_is_expected_to_change() -> None:
    steady, restless = counted(*([2] * 600)), counted(*(([8] * 60 + [2] * 60) * 5))
    after = [counted(8, known=each).likely for each in (steady, restless)]
    assert after[1] > after[0]


def test_nothing_is_believed_of_a_rate_in_the_first_second() -> None:
    """A handful of requests at an operator's start asks for nothing that chance may have brought."""
    first = counted(9)
    assert first.likely < 7.0 < first.high


def test_a_gap_counts_as_a_whole() -> None:
    """A minute without signals, over a jump: as many requests in as many seconds."""
    known = counted(*([2] * 120))
    gap = known.counting(Count(60 * 10, 60.0))
    assert 8.0 < gap.likely < 11.0


def test_requests_that_come_in_clumps_need_more_evidence() -> None:
    """Ten at once every ten seconds, and one a second: as many, and a burst of ten says less where it is usual."""
    clumps, even = counted(*([10] + [0] * 9) * 30), counted(*([1] * 300))
    assert clumps.clump > 5.0 > even.clump
    assert counted(10, known=clumps).likely < 2.5 < counted(10, known=even).likely
    assert clumps.high > even.high


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(0.01, 120.0)), min_size=1, max_size=60))
def test_whatever_is_counted_probabilities_sum_up_and_rates_are_ordered(counts: list[tuple[int, float]]) -> None:
    arrivals = Arrivals()
    for number, seconds in counts:
        arrivals = arrivals.counting(Count(number, seconds))
        assert sum(each.probability for each in arrivals.regimes) == pytest.approx(1.0)
        assert len(arrivals.regimes) <= 80
        assert 0.0 <= arrivals.likely <= arrivals.high + 1e-9
        assert math.isfinite(arrivals.high)


def test_after_a_restless_load_a_silence_is_believed() -> None:
    """Clients that come together, stop, and come again make changes likely and clumps large; four minutes without a
    request leave hardly more than a request a minute."""
    restless = [each for _ in range(12) for each in (6, 0, 0, 0, 2, 0, 0, 9, 0, 0, 0, 0, 1, 0, 0)]
    known = counted(*restless)
    assert known.high > 1.0
    rates = [counted(*([0] * seconds), known=known).high for seconds in (0, 30, 60, 120, 240, 480)]
    assert rates == sorted(rates, reverse=True)
    assert rates[4] <= 0.1 and rates[5] == 0.0
    assert counted(*([0] * 240), 1, known=known).high > rates[4], "the first request ends it"


@pytest.mark.parametrize("rate", [2.0, 40.0])
def test_looks_at_unequal_times_make_no_clumps(rate: float) -> None:
    chance, arrivals = random.Random(3), Arrivals()
    counts = iter(at_random(rate / 4.0, 8000, seed=4))  # each of a quarter of a second
    for _ in range(900):
        quarters = chance.choice([1, 1, 4, 8, 20])
        arrivals = arrivals.counting(Count(sum(next(counts) for _ in range(quarters)), quarters / 4.0))
    assert arrivals.clump < 1.3
