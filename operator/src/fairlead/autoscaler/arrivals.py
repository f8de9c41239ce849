"""At what rate requests come: for certain, at most, and most likely since a rise began. Pure counting of what gateways
counted; who calls it is `readings.py`, and what a rate means for the replicas is left to others.

Requests that come independently of one another make counts whose deviation is their square root: at 4 requests/s chance
alone moves a count of 10 s by 16 %. So every question has its own answer:

- what comes for certain: three deviations below what was counted, where the time is short;
- what may well come: some deviations above it;
- what most likely comes: the mean over the time since the rate last rose. It rose where a rate of its own explains the
  last seconds so much better than one rate for these and the time before that the ratio of likelihoods is that of 4.7
  deviations (a generalised likelihood ratio test, as in Siegmund's Sequential Analysis). With several thousand looks an
  hour four deviations come by chance, 4.7 hardly; where requests wait four are enough, as below the capacity few looks
  find any. The queue is no evidence beside that: it follows from the same arrivals. How much was counted before is part
  of it: to a gateway that has just started the first seconds are the rate, and no rise.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

SURE, CAREFUL = 3.0, 2.0
"""Standard deviations of a count: for what is taken for certain, and for what is allowed for."""
_RISE, _RISE_WITH_QUEUE = 4.7, 4.0
"""Standard deviations that the last seconds lie above the time before, where the rate has risen; and where requests
wait."""
SURGE_SECONDS = (3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 13.0, 16.0, 20.0)
"""How long ago a rise may have begun: not less, since what a moment brings is no rate; not more, since by then the rate
of the last minute tells."""
_PRIOR_REQUESTS = 0.5
"""What a time without a request is taken to have had: nothing is infinitely improbable (Jeffreys' prior)."""


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
    """Requests that may well come, where what came has made a queue already and still goes on: one deviation more, as
    so short a time tells no better. Else no more than the above."""


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
    """The rise that explains best what came. `minute`: each gateway's count of the last minute; `lately`: the same of
    the last seconds, for each of SURGE_SECONDS. `queue`: of the last second, where requests wait and did before it."""
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
    """By how much a rate of its own explains the last seconds and the time before better than one rate for both: the
    logarithm of the ratio of likelihoods. A short time before says little, so little can be concluded from it."""
    number, seconds = sum(count.number for count in counts), sum(count.seconds for count in counts)
    before = sum(count.number for count in minute) - number + _PRIOR_REQUESTS
    seconds_before = sum(max(1.0, count.seconds) for count in minute) - seconds
    if not number or number * seconds_before <= before * seconds:
        return 0.0
    common = (number + before) / (seconds + seconds_before)
    return number * math.log(number / (common * seconds)) + before * math.log(before / (common * seconds_before))
