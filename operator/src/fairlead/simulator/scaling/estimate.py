"""Figures over seeds: means, confidence intervals by Student's t, and whether a rival is better than ours. Pure."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from fairlead.simulator.scaling.trial import TrialResult

CONFIDENCE = 0.95
ALIKE = 0.005
"""A difference of attained shares, or of relative replica-seconds, that decides nothing."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds."""

    mean: float
    half: float | None
    """Half the width of the confidence interval; None = one seed, which says nothing of chance."""


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent figures, and its confidence interval by Student's t; at least one figure."""
    number = len(values)
    if number < 2:
        return Estimate(values[0], None)
    error = statistics.stdev(values) / math.sqrt(number)
    return Estimate(statistics.fmean(values), student_t(number - 1) * error)


@cache
def student_t(degrees: int) -> float:
    """The quantile of Student's t with this many degrees of freedom, for a two-sided interval of `CONFIDENCE`."""
    low, high = 0.0, 1000.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _within(middle, degrees) < CONFIDENCE else (low, middle)
    return (low + high) / 2.0


def _within(t: float, degrees: int) -> float:
    """Probability of at most `t` deviations to either side: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    if degrees == 1:
        return 2.0 * angle / math.pi
    first = degrees % 2
    term = total = cosine if first else 1.0
    for power in range(2 + first, degrees - 1, 2):
        term *= cosine * cosine * (power - 1) / power
        total += term
    return 2.0 / math.pi * (angle + sine * total) if first else sine * total


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One contender on one trace, or over all of them, over seeds."""

    attained: Estimate
    replica_seconds: Estimate
    num_changes: Estimate
    ttft_p90: Estimate | None
    """None = over several traces, where a percentile has no meaning."""


def summary(runs: Sequence[TrialResult]) -> Summary:
    """Of one trace's runs, a run per seed."""
    return Summary(
        attained=estimate([each.attained for each in runs]),
        replica_seconds=estimate([each.replica_seconds for each in runs]),
        num_changes=estimate([each.num_changes for each in runs]),
        ttft_p90=estimate([each.ttft_p90 for each in runs]),
    )


def overall(traces: Sequence[Sequence[TrialResult]]) -> Summary:
    """Of several traces' runs, in the same order of seeds: the mean of attained shares, and sums."""
    seeds = list(zip(*traces, strict=True))

    def over(figure: Callable[[Sequence[TrialResult]], float]) -> Estimate:
        return estimate([figure(seed) for seed in seeds])

    return Summary(
        attained=over(lambda seed: statistics.fmean(each.attained for each in seed)),
        replica_seconds=over(lambda seed: sum(each.replica_seconds for each in seed)),
        num_changes=over(lambda seed: sum(each.num_changes for each in seed)),
        ttft_p90=None,
    )


@dataclass(frozen=True, slots=True)
class RivalComparison:
    """A rival beside ours on one trace, over the same seeds."""

    gain: Estimate
    """Difference of attained shares."""
    price: Estimate
    """Difference of replica-seconds, relative to ours."""

    @property
    def is_better(self) -> bool:
        """Attains as much for less, or more for no more."""
        gain, price = self.gain.mean, self.price.mean
        return gain >= -ALIKE and price <= ALIKE and (gain > ALIKE or price < -ALIKE)

    @property
    def is_dearer(self) -> bool:
        """Attains more, for more."""
        return self.gain.mean > ALIKE and self.price.mean > ALIKE

    @property
    def is_sure(self) -> bool:
        """Whether this holds anywhere in the confidence intervals; with one seed there is none."""
        if self.gain.half is None or self.price.half is None:
            return False
        gain, price = self.gain.mean - self.gain.half, self.price.mean + self.price.half
        if self.is_better:
            return gain >= -ALIKE and price <= ALIKE and (gain > 0.0 or price < 0.0)
        return gain > 0.0


def compare(ours: Sequence[TrialResult], theirs: Sequence[TrialResult]) -> RivalComparison:
    """Runs with the same seeds, in the same order."""
    mean = statistics.fmean(each.replica_seconds for each in ours) or 1.0
    both = list(zip(ours, theirs, strict=True))
    return RivalComparison(
        estimate([their.attained - our.attained for our, their in both]),
        estimate([(their.replica_seconds - our.replica_seconds) / mean for our, their in both]),
    )
