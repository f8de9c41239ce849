"""Rates of arriving requests, and how far chance alone moves them. Pure arithmetic on the gateways' counts, called by
`readings.py`.

Independent arrivals make counts with a standard deviation of their square root: at 4 requests/s chance alone moves a
count of 10 s by 16 %. Hence a rate is taken some deviations lower or higher, by what it is for: what is likely adds
replicas, what is sure takes them away (docs/adr/0057).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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

LONG_RATE_SECONDS = 40.0
"""From here on few looks are independent of each other, so a rate is not chance because it was once higher."""
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

    def beside(self, per_second: float, seconds: float, *, is_queue: bool) -> "Recent":
        """The same, beside a steady rate and for how long it was seen: chance where it does not exceed that for sure,
        and then no more than the steady rate, unless it was counted for long."""
        is_long, evidence = self.seconds >= LONG_RATE_SECONDS, 0.0
        if self.per_second > per_second:
            number, before = self.per_second * self.seconds, per_second * seconds + _PRIOR_REQUESTS
            evidence = likelihood_ratio(number, self.seconds, before, seconds)
        if evidence >= (SURE**2 / 2.0 if is_long else _needed(is_queue)):
            return replace(self, evidence=evidence)
        return replace(self, per_second=self.per_second if is_long else min(self.per_second, per_second), evidence=0.0)

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
    return 0.0 if most is None or most.evidence < _needed(is_queue) else most.less(RISEN)


def _needed(is_queue: bool) -> float:
    return (_RISE_WITH_QUEUE if is_queue else _RISE) ** 2 / 2.0


def likelihood_ratio(number: float, seconds: float, other: float, other_seconds: float) -> float:
    """Logarithm of how much likelier two counts are at a rate of their own each than at a common one: a generalised
    likelihood ratio test, as in Siegmund's Sequential Analysis."""
    common = (number + other) / (seconds + other_seconds)

    def gain(count: float, time: float) -> float:
        return count * math.log(count / (common * time)) if count > 0.0 else 0.0

    return gain(number, seconds) + gain(other, other_seconds)


def _evidence(minute: Sequence[Count], counts: Sequence[Count]) -> float:
    """A short time before gives little evidence, so the first seconds of a new gateway are no rise."""
    number, seconds = sum(count.number for count in counts), sum(count.seconds for count in counts)
    before = sum(count.number for count in minute) - number + _PRIOR_REQUESTS
    seconds_before = sum(max(1.0, count.seconds) for count in minute) - seconds
    if not number or number * seconds_before <= before * seconds:
        return 0.0
    return likelihood_ratio(number, seconds, before, seconds_before)
