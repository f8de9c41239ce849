"""Histograms with fixed upper bounds, as gateways count (`api/signals_message.py`), and their percentiles."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from fairlead.api.signals_message import SECONDS_BOUNDS, TOKENS_BOUNDS


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram. Each count is for figures above the previous bound and up to its own; the last count is above all
    bounds."""

    bounds: tuple[float, ...]
    """Ascending."""
    counts: tuple[int, ...]
    """One more than bounds; not cumulative. Empty = nothing counted."""

    @classmethod
    def seconds(cls, counts: Sequence[int] = ()) -> "Buckets":
        """Durations, in the buckets of `fairlead.api.signals_message.count_seconds`."""
        return cls(SECONDS_BOUNDS, tuple(counts))

    @classmethod
    def tokens(cls, counts: Sequence[int] = ()) -> "Buckets":
        """Tokens per request, in the buckets of `fairlead.api.signals_message.count_tokens`."""
        return cls(TOKENS_BOUNDS, tuple(counts))

    @property
    def total(self) -> int:
        """Figures counted in all."""
        return sum(self.counts)

    def since(self, earlier: "Buckets") -> "Buckets":
        """The counts added after `earlier`, a state of the same counter."""
        if not earlier.counts:
            return self
        rest = (max(0, now - then) for now, then in zip(self.counts, earlier.counts, strict=True))
        return Buckets(self.bounds, tuple(rest))

    def plus(self, other: "Buckets") -> "Buckets":
        """Both together."""
        if not self.counts or not other.counts:
            return self if self.counts else other
        return Buckets(self.bounds, tuple(one + two for one, two in zip(self.counts, other.counts, strict=True)))

    def percentile(self, percent: float) -> float | None:
        """The figure that `percent` of all figures do not exceed; None = nothing counted.

        Linear within a bucket, as in Prometheus' `histogram_quantile`; beyond the last bound, the last bound.
        """
        total = self.total
        if not total:
            return None
        rank, cumulated = total * percent / 100.0, list(accumulate(self.counts))
        place = bisect_left(cumulated, rank)
        if place >= len(self.bounds):
            return self.bounds[-1]
        lower = self.bounds[place - 1] if place else 0.0
        below = cumulated[place - 1] if place else 0
        return lower + (self.bounds[place] - lower) * (rank - below) / self.counts[place]

    def share_above(self, bound: float) -> float:
        """The share of all figures above a bound, linear within a bucket; 0 where nothing was counted."""
        total, above, lower = self.total, 0.0, 0.0
        for upper, count in zip((*self.bounds, math.inf), self.counts, strict=False):
            if lower >= bound or (math.isinf(upper) and count):
                above += count
            elif upper > bound:
                above += count * (upper - bound) / (upper - lower)
            lower = upper
        return above / total if total else 0.0
