"""What is remembered of one model's demand: the rate of requests, averages per request, and the last known capacity.

Kept by the autoscaler's `History`, which remembers the decisions. Pure arithmetic.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from fairlead.api.scaling_policy import SHORTEST_DEMAND_WINDOW
from fairlead.demand.arrivals import Arrivals, Count
from fairlead.demand.signals import Capacity, Demand, Signals
from fairlead.demand.trend import LONGEST_SECONDS, SAMPLE_SECONDS, Sample, back, grown

YOUNG_SECONDS, OLD_SECONDS, UNLIKE = 300.0, 1800.0, 3.0
"""Averages per request are those of the last minute until they are so old, then of ever longer times, at most so long;
unless those of the last minute differ by more than so many standard deviations."""


@dataclass(frozen=True, slots=True)
class Averages:
    """Of a request. Over longer times than a minute chance changes no decision."""

    since: float
    uncached_tokens_per_request: float
    prompt_tokens_per_request: float
    output_tokens_per_request: float

    @property
    def values(self) -> dict[str, Any]:
        """By the names of Demand."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "since"}

    def with_minute(self, demand: Demand, now: float, seconds: float) -> "Averages":
        """With the averages of the last minute, so many seconds after the last time."""
        seen = {name: getattr(demand, name) for name in self.values}
        chance = UNLIKE / math.sqrt(max(1, demand.uncached_per_request.total))
        if any(abs(seen[name] - known) > chance * known for name, known in self.values.items()):
            return Averages(now, **seen)
        weight = min(1.0, seconds / max(1.0, min(now - self.since - YOUNG_SECONDS, OLD_SECONDS)))
        return Averages(
            self.since, **{name: known + weight * (seen[name] - known) for name, known in self.values.items()}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandRecord:
    """Immutable; `remember` makes the next one."""

    capacity: Capacity | None = None
    """The last known capacity of a replica, for a fleet at zero or with late loads."""
    arrivals: Arrivals | None = None
    """The rate of requests; None = nothing has been counted yet."""
    counted: Mapping[str, Count] = field(default_factory=dict)
    """`Demand.counted` of the last complete tick."""
    work: Averages | None = None
    """None = nothing is known yet."""
    rates: tuple[Sample, ...] = ()
    """The arrivals of the last minutes, oldest first."""

    def remember(self, signals: Signals, passed: float) -> Self:
        """The record with this tick, so many seconds after the last one or the first."""
        arrivals = self._arrivals(signals, passed)
        return replace(
            self,
            capacity=self._capacity(signals.demand),
            arrivals=arrivals,
            counted=signals.demand.counted if signals.is_complete else self.counted,
            work=self._work(signals, passed),
            rates=self._rates(signals, 0.0 if arrivals is None else arrivals.seconds),
        )

    def complete(self, signals: Signals) -> Signals:
        """The signals of the tick remembered last, with the rates to decide by, averages over longer times, and the
        last known capacity where no load tells."""
        ahead, arrivals = signals.start_seconds, self.arrivals
        known = {} if self.work is None else self.work.values
        demand = replace(signals.demand, capacity=self.capacity, **known)
        if arrivals is None:
            return replace(signals, demand=demand)
        steady, rate, high = arrivals.steady_seconds, arrivals.likely, arrivals.high
        if steady <= 2.0 * back(ahead) and self.rates:
            sure, perhaps = grown(self.rates, ahead)
            rate, high = max(rate, sure), max(high, perhaps)
        demand = replace(demand, arrivals_per_second=rate, arrivals_per_second_high=max(rate, high))
        return replace(signals, demand=demand, steady_seconds=steady)

    def begun_with(self, capacity: Capacity | None) -> Self:
        """With the capacity of a measured profile, used until the first load arrives."""
        return self if capacity is None or self.capacity is not None else replace(self, capacity=capacity)

    def _capacity(self, demand: Demand) -> Capacity | None:
        known = demand.capacity or self.capacity
        if known is not None and known.step_cost is None and self.capacity is not None:
            return replace(known, step_cost=self.capacity.step_cost)
        return known

    def _arrivals(self, signals: Signals, passed: float) -> Arrivals | None:
        """With the requests since the last complete tick."""
        count = self._count(signals, passed)
        return self.arrivals if count is None else (self.arrivals or Arrivals()).counting(count)

    def _count(self, signals: Signals, passed: float) -> Count | None:
        """Over the gateways that were there at the last complete tick or have been started since; None where no time
        has passed for them, or not every gateway tells: the requests come with the next tick that is complete."""
        if not signals.is_complete:
            return None
        seconds, number = [], 0.0
        for name, now in signals.demand.counted.items():
            then = self.counted.get(name, Count(0.0, 0.0))
            if name in self.counted or now.seconds <= passed + 1.0:
                number += max(0.0, now.number - then.number)
                seconds.append(now.seconds - then.seconds)
        longest = max(seconds, default=0.0)
        return Count(number, longest) if longest > 0.0 else None

    def _work(self, signals: Signals, passed: float) -> Averages | None:
        demand = signals.demand
        if self.work is not None:
            return self.work.with_minute(demand, signals.time, passed)
        if not demand.uncached_per_request.total:
            return None
        return Averages(signals.time, *(getattr(demand, name) for name in Averages.__slots__ if name != "since"))

    def _rates(self, signals: Signals, counted: float) -> tuple[Sample, ...]:
        """With the rate of now, where the last one is old enough, or so many seconds were counted, and every gateway
        tells."""
        now = signals.time
        kept = tuple(each for each in self.rates if now - each.time <= LONGEST_SECONDS)
        if not signals.is_complete or (now - kept[-1].time if kept else counted) < SAMPLE_SECONDS:
            return kept
        return (*kept, Sample(now, signals.demand.num_recent_arrivals / SHORTEST_DEMAND_WINDOW))
