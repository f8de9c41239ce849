"""Trend: where the arrivals are going, from the rates of the last minutes. Pure arithmetic, called by `history.py`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fairlead.autoscaler.arrivals import CAREFUL, likelihood_ratio

SAMPLE_SECONDS = 10.0
"""Between two rates; each is counted over this time."""
SHORTEST_SECONDS, STARTS = 90.0, 2.0
"""How far back the trend looks: so many starts of a replica, and this time at least."""
LEVEL_TIMES = 1.5
"""The rate that lasts is told by rates of so many times as long."""
LONGEST_SECONDS = 600.0
"""How far back rates are kept."""
_FEWEST, _PARTS = 6, 3
"""Rates that make a trend, and the parts of them that must grow."""
CHANGED, STEADY = 3.5, 24
"""Standard deviations of two parts of the samples from which the rate has changed between them, and the samples without
a change that make a steady rate."""
SURELY, DOUBT = 3.0, 0.5
"""Standard deviations that a growth is above chance, and by which it is then taken for less than it looks."""
MOST_GROWTH = 1.5
"""The expected rate, at most, as a multiple of the present rate."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A rate."""

    time: float
    """When it was counted, in seconds of a monotonic clock."""
    per_second: float


def trending(samples: Sequence[Sample], start: float, times: float = 1.0) -> Sequence[Sample]:
    """Those that the trend looks back to, or so many times as far, where a replica takes so long to start."""
    back = min(LONGEST_SECONDS, times * max(SHORTEST_SECONDS, STARTS * start))
    return [each for each in samples if samples[-1].time - each.time <= back]


def steady(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The newest of the samples, since the rate last changed; empty where these are too few to tell a steady rate from
    a slow growth."""
    while len(samples) >= STEADY and (begin := _change(samples)):
        samples = samples[begin:]
    return samples if len(samples) >= STEADY else ()


def level(samples: Sequence[Sample], deviations: float = -CAREFUL) -> float:
    """The mean, so many standard deviations higher, if it stays; 0 where too little is known."""
    return max(0.0, _mean(samples) + deviations * _error(samples)) if len(samples) >= _FEWEST else 0.0


def expected(samples: Sequence[Sample], *, ahead: float, is_sure: bool = True) -> float:
    """The rate in so many seconds; 0 where too little is known or the arrivals do not grow. `is_sure`: only a growth
    that is not chance, and its lower estimate; else the upper estimate of any growth.

    The growth is that of all samples, but hardly more than that from any third of them to the next, or within the
    newest third: a step is no trend.
    """
    if len(samples) < _FEWEST:
        return 0.0
    number = len(samples)
    thirds = [samples[number * part // _PARTS : number * (part + 1) // _PARTS] for part in range(_PARTS)]
    (slope, error), (newest, newest_error) = _slope(samples), _slope(thirds[-1])
    growths = (_growth(before, after) for before, after in pairwise(thirds))
    own = (slope - DOUBT * error, newest + newest_error) if is_sure else (slope + DOUBT * error,)
    growth = min(*own, *growths)
    if growth <= 0.0 or (is_sure and slope < SURELY * error):
        return 0.0
    most = MOST_GROWTH * _mean(thirds[-1])
    return min(_mean(samples) + growth * (samples[-1].time - _time(samples) + ahead), most)


def _change(samples: Sequence[Sample]) -> int:
    """The first sample after the most evident change of the rate; 0 = chance alone explains the samples."""
    total = sum(each.per_second for each in samples) * SAMPLE_SECONDS
    most, place, number = CHANGED**2 / 2.0, 0, 0.0
    for begin, sample in enumerate(samples[:-1], 1):
        number += sample.per_second * SAMPLE_SECONDS
        before, after = (number, SAMPLE_SECONDS * begin), (total - number, SAMPLE_SECONDS * (len(samples) - begin))
        if (evidence := likelihood_ratio(*before, *after)) > most:
            most, place = evidence, begin
    return place


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
