"""Rates of arriving requests, and how far chance alone moves them. Pure arithmetic on the gateways' counts, called by
`readings.py`.

Independent arrivals make counts with a standard deviation of their square root: at 4 requests/s chance alone moves a
count of 10 s by 16 %. Hence a rate is taken some deviations lower or higher, by what it is for: what is likely adds
replicas, what is sure takes them away (docs/adr/0057).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SURE, CAREFUL, LIKELY, RISEN = 3.0, 2.0, 1.0, 0.5
"""Standard deviations of a count: below the count for a certain rate, below or above it for a rate that lasts, and
below it for a likely one and for that of a certain rise."""
_RISE, _RISE_WITH_QUEUE = 4.7, 4.0
"""Standard deviations of the last seconds above the time before, from which the rate has risen; the second where
requests wait. With several thousand looks an hour, chance brings four deviations but hardly 4.7; few looks find a queue
below capacity."""
_PRIOR_REQUESTS = 0.5
"""Requests assumed in a time without a request, so nothing is infinitely improbable (Jeffreys' prior)."""
LATELY_SECONDS = (3.0, 5.0, 8.0, 10.0, 13.0, 20.0, 40.0, 60.0)
"""The times over which recent rates are counted. Fewer seconds are no rate."""

SHORTEST_RATE_SECONDS = 10.0
"""Below this a handful of requests would pass for a rate that lasts."""


@dataclass(frozen=True, slots=True)
class Count:
    """Requests that came to one gateway."""

    number: int
    seconds: float
    """In how long; 0 where nothing can be compared."""


@dataclass(frozen=True, slots=True)
class Recent:
    """The rate of the last seconds."""

    seconds: float
    per_second: float
    """Requests that came."""
    error: float
    """Its standard deviation."""
    evidence: float = 0.0
    """For a rise: logarithm of the likelihood ratio of two rates, for these seconds and the time before, to one."""

    def less(self, deviations: float) -> float:
        """The rate, so many deviations lower."""
        return max(0.0, self.per_second - deviations * self.error)


def rate(counts: Iterable[Count]) -> float:
    """Requests per second, over all gateways. Less than a second is taken for one: two requests at once are no rate."""
    return sum(count.number / max(1.0, count.seconds) for count in counts)


def error(counts: Iterable[Count]) -> float:
    """The rate's standard deviation."""
    return math.sqrt(sum(count.number / max(1.0, count.seconds) ** 2 for count in counts))


def at_least(counts: Sequence[Count]) -> float:
    """The rate that is certain at least."""
    return max(0.0, rate(counts) - SURE * error(counts))


def recent(seconds: float, counts: Sequence[Count], minute: Sequence[Count]) -> Recent | None:
    """The rate of so many seconds; None where no gateway has counted for so long. `minute`: the counts of the last
    minute."""
    if max((count.seconds for count in counts), default=0.0) < seconds:
        return None
    return Recent(seconds, rate(counts), error(counts), _evidence(minute, counts))


def risen(lately: Sequence[Recent], *, is_queue: bool) -> float:
    """The likely rate since the most evident rise; 0 where no rise is certain. `is_queue`: whether requests wait."""
    most = max(lately, key=lambda each: each.evidence, default=None)
    if most is None or most.evidence < (_RISE_WITH_QUEUE if is_queue else _RISE) ** 2 / 2.0:
        return 0.0
    return most.less(RISEN)


def _evidence(minute: Sequence[Count], counts: Sequence[Count]) -> float:
    """A generalised likelihood ratio test, as in Siegmund's Sequential Analysis. A short time before gives little
    evidence, so the first seconds of a new gateway are no rise."""
    number, seconds = sum(count.number for count in counts), sum(count.seconds for count in counts)
    before = sum(count.number for count in minute) - number + _PRIOR_REQUESTS
    seconds_before = sum(max(1.0, count.seconds) for count in minute) - seconds
    if not number or number * seconds_before <= before * seconds:
        return 0.0
    common = (number + before) / (seconds + seconds_before)
    return number * math.log(number / (common * seconds)) + before * math.log(before / (common * seconds_before))
