"""Trend: where the arrivals are going, from the rates of the last minutes. Pure arithmetic, called by `history.py`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fairlead.autoscaler.arrivals import CAREFUL

SAMPLE_SECONDS = 10.0
"""Between two rates; each is counted over this time."""
SHORTEST_SECONDS, STARTS = 120.0, 3.0
"""How far back the trend looks: so many starts of a replica, and this time at least."""
LONGEST_SECONDS = 600.0
"""How far back the trend looks at most."""
_FEWEST, _PARTS = 6, 3
"""Rates that make a trend, and the parts of them that must grow."""
SURELY, DOUBT = 3.5, 0.5
"""Standard deviations that a growth is above chance, and by which it is then taken for less than it looks."""
MOST_GROWTH = 1.5
"""The expected rate, at most, as a multiple of the present rate."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A rate."""

    time: float
    """When it was counted, in seconds of a monotonic clock."""
    per_second: float


def seconds_back(start: float) -> float:
    """How far back the trend looks, where a replica takes so long to start."""
    return min(LONGEST_SECONDS, max(SHORTEST_SECONDS, STARTS * start))


def level(samples: Sequence[Sample]) -> float:
    """The rate that is likely at least, if it stays; 0 where too little is known."""
    if len(samples) < _FEWEST:
        return 0.0
    return max(0.0, _mean(samples) - CAREFUL * _error(samples))


def expected(samples: Sequence[Sample], *, ahead: float) -> float:
    """The rate in so many seconds; 0 where too little is known or the arrivals do not grow.

    The growth is that of all samples, but hardly more than that from any third of them to the next, or within the
    newest third: a step is no trend.
    """
    if len(samples) < _FEWEST:
        return 0.0
    number = len(samples)
    thirds = [samples[number * part // _PARTS : number * (part + 1) // _PARTS] for part in range(_PARTS)]
    (slope, error), (newest, newest_error) = _slope(samples), _slope(thirds[-1])
    growths = (_growth(before, after) for before, after in pairwise(thirds))
    growth = min(slope - DOUBT * error, newest + newest_error, *growths)
    if growth <= 0.0 or slope < SURELY * error:
        return 0.0
    most = MOST_GROWTH * _mean(thirds[-1])
    return min(_mean(samples) + growth * (samples[-1].time - _time(samples) + ahead), most)


def _growth(before: Sequence[Sample], after: Sequence[Sample]) -> float:
    """The most that it is likely, in requests per second and second."""
    error = math.hypot(_error(before), _error(after))
    return (_mean(after) - _mean(before) + error) / max(SAMPLE_SECONDS, _time(after) - _time(before))


def _mean(samples: Sequence[Sample]) -> float:
    return sum(each.per_second for each in samples) / len(samples)


def _time(samples: Sequence[Sample]) -> float:
    return sum(each.time for each in samples) / len(samples)


def _error(samples: Sequence[Sample]) -> float:
    """The standard deviation of the mean, for independent arrivals."""
    return math.sqrt(_mean(samples) / (SAMPLE_SECONDS * len(samples)))


def _slope(samples: Sequence[Sample]) -> tuple[float, float]:
    """By least squares, with its standard deviation."""
    middle, mean = _time(samples), _mean(samples)
    spread = sum((each.time - middle) ** 2 for each in samples)
    if not spread:
        return 0.0, 0.0
    slope = sum((each.time - middle) * each.per_second for each in samples) / spread
    return slope, math.sqrt(mean / SAMPLE_SECONDS / spread)
