"""Trend: where the arrivals are going, from the rates of the last minutes. Pure arithmetic, called by `history.py`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SAMPLE_SECONDS = 10.0
"""Between two rates; each is counted over this time."""
SHORTEST_SECONDS, STARTS = 90.0, 2.0
"""How far back the trend looks: so many starts of a replica, and this time at least."""
LONGER = 1.5
"""It looks back so many times as far, too: the one tells a growth that has just begun, the other a slow one."""
LONGEST_SECONDS = 600.0
"""How far back rates are kept."""
_FEWEST, _PARTS = 6, 3
"""Rates that make a trend, and the parts of them that must grow."""
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


def grown(samples: Sequence[Sample], start: float) -> tuple[float, float]:
    """The rate when a replica asked for now is ready, after a `start` of so many seconds, as far as it surely grows,
    and the rate that a growth may bring; 0 where the rate does not grow."""
    lately, longer = (_lately(samples, start, times) for times in (1.0, LONGER))
    ahead = start + SAMPLE_SECONDS
    sure = max(expected(each, ahead=ahead) for each in (lately, longer))
    return sure, max(sure, expected(longer, ahead=ahead, is_sure=False))


def back(start: float) -> float:
    """How far back the trend looks at most, in seconds."""
    return LONGER * max(SHORTEST_SECONDS, STARTS * start)


def _lately(samples: Sequence[Sample], start: float, times: float) -> Sequence[Sample]:
    seconds = min(LONGEST_SECONDS, times * max(SHORTEST_SECONDS, STARTS * start))
    return [each for each in samples if samples[-1].time - each.time <= seconds]


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
