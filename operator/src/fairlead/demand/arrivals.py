"""The rate of requests, as a probability distribution by their counts. Pure arithmetic, kept by `history.py`.

A regime is a time at one rate; at its end the rate becomes any other. Each tick may have begun the present regime: a
Regime holds the probability of that, and the requests counted since (Bayesian online change point detection, Adams and
MacKay 2007, for counts with a gamma distributed rate). The frequency of changes is learned as well: after an hour at
one rate a change needs more evidence than after a minute. Chance is counted once: replicas are added for a likely rate
(`LIKELY`), and removed for a rate that is hardly exceeded (`RARELY`).
"""

import math
from dataclasses import dataclass, replace
from math import erfc
from typing import Self

LIKELY, RARELY, SURELY = 0.2, 0.02, 0.98
"""Probabilities of a higher rate: for adding replicas, for removing replicas, and for adding replicas before requests
are counted. The third approaches the first within `YOUNG_SECONDS`."""
YOUNG_SECONDS = 60.0
CHANGE_SECONDS = 30.0
"""Expected length of the first regime."""
SPREAD = 0.5
"""Requests that a new regime begins with, in the seconds in which the rate before would bring as many (Jeffreys'
prior, scaled)."""
CLUMPS, CLUMPS_WEIGHT, CLUMPS_SECONDS = 1.0, 60.0, 600.0
"""Requests that come together on average, before the first count; the weight of this figure in requests; and the
seconds over which newer counts replace older ones."""
SILENCE = 3.0
"""While no request comes, the rate is at most so many clumps in the seconds since the last one (the rule of three: with
95 % confidence)."""
_NEGLIGIBLE, _NEWEST, _MOST = 1e-6, 10, 64
"""Regimes below this probability are forgotten but for the newest; regimes kept at most."""
_SLIGHT, _PRECISION = 1e-5, 1e-4
"""Regimes below the first are left out of rates, which are told to three times the second, as a share."""
LEAST_RATE = 0.05
"""Requests per second: smaller rates count as 0, and a regime after no requests begins with this rate."""


@dataclass(frozen=True, slots=True)
class Count:
    """Requests counted by one gateway since its start, or by all within some time."""

    number: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Regime:
    """A rate since a moment, as a gamma distribution."""

    probability: float
    age: float
    """Seconds since it began."""
    number: float
    """Requests counted since, with those it began with."""
    seconds: float
    """In how long they came, likewise."""
    changes: float
    """Changes of the rate before, on average."""

    @property
    def rate(self) -> float:
        """Requests per second, on average."""
        return self.number / self.seconds

    def likelihood(self, count: Count) -> float:
        """The probability of a count (negative binomial)."""
        shape, number, seconds = self.number, count.number, count.seconds
        return math.exp(
            math.lgamma(shape + number) - math.lgamma(shape) - math.lgamma(number + 1.0)
            - shape * math.log1p(seconds / self.seconds) + number * math.log(seconds / (self.seconds + seconds))
        )  # fmt: skip

    def counting(self, count: Count, probability: float) -> "Regime":
        """The same with a count, and another probability."""
        number, seconds = self.number + count.number, self.seconds + count.seconds
        return Regime(probability, self.age, number, seconds, self.changes)

    @property
    def normal(self) -> tuple[float, float]:
        """Mean and 1 / (√2 · standard deviation) of the cube root of the rate, which is about normal (Wilson and
        Hilferty)."""
        ninth, root = 1.0 / (9.0 * self.number), self.rate ** (1.0 / 3.0)
        return (1.0 - ninth) * root, 1.0 / (math.sqrt(2.0 * ninth) * root)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Immutable; `counting` makes the next one."""

    regimes: tuple[Regime, ...] = ()
    """Oldest first; their probabilities sum up to 1."""
    seconds: float = 0.0
    """Counted in all."""
    silent: float = 0.0
    """Seconds counted since the last request."""
    last: Count = Count(0.0, 0.0)
    squares: float = 0.0
    sums: float = 0.0
    """Squared differences of successive counts, and the sum of both counts, with a larger weight for newer counts.
    Independent requests make both equal on average, at any rate."""

    @property
    def clump(self) -> float:
        """Requests that come together on average, at least 1; each count is divided by this number."""
        return max(1.0, (CLUMPS * CLUMPS_WEIGHT + self.squares) / (CLUMPS_WEIGHT + self.sums))

    def counting(self, count: Count) -> Self:
        """With the requests of some more seconds, which must be more than 0."""
        silent = 0.0 if count.number else self.silent + count.seconds
        if not self.regimes:
            begun = _regime(count.number / count.seconds, 1.0, 0.0)
            begun = replace(begun.counting(count, 1.0), age=count.seconds)
            return replace(self, regimes=(begun,), seconds=count.seconds, silent=silent, last=count)
        seconds, last, before = count.seconds, count, self.last
        kept = math.exp(-seconds / CLUMPS_SECONDS)
        difference = last.number * before.seconds - before.number * seconds  # of counts over unequal times
        squares = kept * self.squares + difference**2 / (seconds * before.seconds)
        sums = kept * self.sums + last.number + before.number
        count = Count(count.number / self.clump, count.seconds / self.clump)
        known, fresh, changes = [], 0.0, 0.0
        for each in self.regimes:
            change = min(0.5, (1.0 + each.changes) * seconds / (CHANGE_SECONDS + self.seconds))
            known.append(each.counting(count, each.probability * (1.0 - change) * each.likelihood(count)))
            fresh += each.probability * change
            changes += each.probability * change * (each.changes + 1.0)
        begun = _regime(self._mean, fresh, changes / fresh)
        known.append(begun.counting(count, fresh * begun.likelihood(count)))
        return type(self)(_likeliest(known, seconds), self.seconds + seconds, silent, last, squares, sums)

    @property
    def _mean(self) -> float:
        return sum(each.probability * each.rate for each in self.regimes)

    @property
    def likely(self) -> float:
        """Requests per second to add replicas for."""
        return self.rate(LIKELY + (SURELY - LIKELY) * max(0.0, 1.0 - self.seconds / YOUNG_SECONDS))

    @property
    def high(self) -> float:
        """Requests per second to keep replicas for."""
        return self.rate(RARELY)

    def rate(self, probability: float) -> float:
        """The rate that is exceeded with this probability, in requests per second; 0 where nothing was counted."""
        known = [(each.probability, *each.normal) for each in self.regimes if each.probability > _SLIGHT]
        low, high = 0.0, max((mean + 4.0 / narrow for _, mean, narrow in known), default=0.0)
        while high - low > _PRECISION * high:  # by the cube roots of rates
            root = (low + high) / 2.0
            if sum([share * erfc((root - mean) * narrow) for share, mean, narrow in known]) > 2.0 * probability:
                low = root
            else:
                high = root
        low **= 3.0
        if self.silent:
            low = min(low, SILENCE * self.clump / self.silent)
        return low if low >= LEAST_RATE else 0.0

    @property
    def steady_seconds(self) -> float:
        """For how long the rate has most likely been the same."""
        younger = 0.0
        for each in reversed(self.regimes):
            younger += each.probability
            if younger > 0.1:
                return each.age
        return 0.0


def _regime(rate: float, probability: float, changes: float) -> Regime:
    return Regime(probability, 0.0, SPREAD, SPREAD / max(rate, LEAST_RATE), changes)


def _likeliest(regimes: list[Regime], seconds: float) -> tuple[Regime, ...]:
    """Older by some seconds, with probabilities that sum up to 1."""
    total = sum(each.probability for each in regimes)
    newest = len(regimes) - _NEWEST
    kept = [each for place, each in enumerate(regimes) if place >= newest or each.probability > total * _NEGLIGIBLE]
    if len(kept) > _MOST:
        least = sorted(each.probability for each in kept)[len(kept) - _MOST]
        kept = [each for each in kept if each.probability >= least]
    total = sum(each.probability for each in kept)
    if not total:  # no rate explains the count
        kept, total = [replace(kept[-1], probability=1.0)], 1.0
    return tuple(
        [Regime(each.probability / total, each.age + seconds, each.number, each.seconds, each.changes) for each in kept]
    )
