"""Durations counted by upper bound, as Prometheus counts them, and what can be read from them."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many durations were at most so long."""

    buckets: tuple[tuple[float, float], ...] = ()
    """Upper bound in seconds and cumulative count, ascending; the last bound is infinite. Empty = nothing counted."""

    @property
    def total(self) -> float:
        """Durations counted in all."""
        return self.buckets[-1][1] if self.buckets else 0.0

    def since(self, earlier: "Histogram") -> "Histogram":
        """What was counted after `earlier`; everything, where a restart began the counts anew or moved the bounds."""
        if _bounds(earlier) != _bounds(self):
            return self
        rest = tuple((bound, now - then) for (bound, now), (_, then) in zip(self.buckets, earlier.buckets, strict=True))
        return self if any(count < 0 for _, count in rest) else Histogram(rest)

    def plus(self, other: "Histogram") -> "Histogram":
        """Both together. Of two with different bounds, the one that counted more: their counts cannot be added."""
        if not self.buckets or not other.buckets or _bounds(self) != _bounds(other):
            return max(self, other, key=lambda histogram: histogram.total)
        pairs = zip(self.buckets, other.buckets, strict=True)
        return Histogram(tuple((bound, one + two) for (bound, one), (_, two) in pairs))

    def percentile(self, percent: float) -> float | None:
        """Seconds that so many percent of the durations were within; None where nothing was counted.

        Linear within a bucket, as Prometheus' `histogram_quantile` is. Beyond the last finite bound it is that bound.
        """
        rank, lower, below = self.total * percent / 100.0, 0.0, 0.0
        if not self.total:
            return None
        for bound, count in self.buckets:
            if count >= rank and count > below:
                return lower if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (count - below)
            lower, below = bound, count
        return lower


def _bounds(histogram: Histogram) -> tuple[float, ...]:
    return tuple(bound for bound, _ in histogram.buckets)
