"""Rates of arriving requests: certain, at most, and most likely since a rise. Pure arithmetic on the gateways' counts,
called by `readings.py`.

Independent arrivals make counts with a standard deviation of their square root: at 4 requests/s chance alone moves a
count of 10 s by 16 %. Hence three estimates:

- certain: three deviations below the count, where the time is short;
- at most: some deviations above the count;
- most likely: the mean since the last rise. The rate rose if a rate of their own for the last seconds, instead of one
  rate for all the time, raises the likelihood as much as 4.7 deviations do (a generalised likelihood ratio test, as in
  Siegmund's Sequential Analysis). With several thousand looks an hour, chance brings four deviations but hardly 4.7;
  four suffice where requests wait, since few looks find a queue below capacity. The queue itself is no evidence: it
  follows from the same arrivals. The count before the rise is evidence, so the first seconds of a new gateway are no
  rise.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

SURE, CAREFUL = 3.0, 2.0
"""Standard deviations of a count: below the count for a certain rate, above the count for a rate to have room for."""
_RISE, _RISE_WITH_QUEUE = 4.7, 4.0
"""Standard deviations of the last seconds above the time before, from which the rate has risen; the second where
requests wait."""
SURGE_SECONDS = (3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 13.0, 16.0, 20.0)
"""Seconds since a rise may have begun. Fewer are no rate; after more, the last minute's rate tells."""
_PRIOR_REQUESTS = 0.5
"""Requests assumed in a time without a request, so nothing is infinitely improbable (Jeffreys' prior)."""


@dataclass(frozen=True, slots=True)
class Count:
    """Requests that came to one gateway."""

    number: int
    seconds: float
    """In how long; 0 where nothing can be compared."""


@dataclass(frozen=True, slots=True)
class Surge:
    """A rate that is higher than it was."""

    per_second: float = 0.0
    """Requests that most likely come; 0 where no rise is certain."""
    seconds: float = 0.0
    """For how long it has been so."""
    per_second_high: float = 0.0
    """Upper estimate of the requests per second: one deviation more where a queue has formed and arrivals go on. Never
    below `per_second`."""


NO_SURGE = Surge()


def rate(counts: Iterable[Count]) -> float:
    """Requests per second, over all gateways. Less than a second is taken for one: two requests at once are no rate."""
    return sum(count.number / max(1.0, count.seconds) for count in counts)


def error(counts: Iterable[Count]) -> float:
    """The rate's standard deviation."""
    return math.sqrt(sum(count.number / max(1.0, count.seconds) ** 2 for count in counts))


def at_least(counts: Sequence[Count]) -> float:
    """The rate that is certain at least."""
    return max(0.0, rate(counts) - SURE * error(counts))


def surge(minute: Sequence[Count], lately: Mapping[float, Sequence[Count]], *, queue: Sequence[Count] = ()) -> Surge:
    """The most likely rise. `minute`: each gateway's count of the last minute. `lately`: counts of the last seconds,
    for each of SURGE_SECONDS. `queue`: counts of the last second, if requests wait now and waited before."""
    found, most = NO_SURGE, (_RISE_WITH_QUEUE if queue else _RISE) ** 2 / 2.0
    newest = rate(queue) + CAREFUL * error(queue)
    for seconds, counts in lately.items():
        if max((count.seconds for count in counts), default=0.0) < seconds:
            break  # nobody has counted for so long
        evidence = _evidence(minute, counts)
        if evidence >= most:
            likely = rate(counts)
            found, most = Surge(likely, seconds, max(likely, min(likely + error(counts), newest))), evidence
    return found


def _evidence(minute: Sequence[Count], counts: Sequence[Count]) -> float:
    """Logarithm of the likelihood ratio of two rates, for the last seconds and the time before, to one common rate. A
    short time before gives little evidence."""
    number, seconds = sum(count.number for count in counts), sum(count.seconds for count in counts)
    before = sum(count.number for count in minute) - number + _PRIOR_REQUESTS
    seconds_before = sum(max(1.0, count.seconds) for count in minute) - seconds
    if not number or number * seconds_before <= before * seconds:
        return 0.0
    common = (number + before) / (seconds + seconds_before)
    return number * math.log(number / (common * seconds)) + before * math.log(before / (common * seconds_before))
