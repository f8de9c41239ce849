"""History: the earlier ticks, as far as later decisions need them. Plain memory; `recommend` judges."""

from dataclasses import dataclass, replace

from fairlead.api.llmdeployment import Autoscaling
from fairlead.autoscaler.arrivals import CAREFUL
from fairlead.autoscaler.buckets import Buckets
from fairlead.autoscaler.policy import (
    LONGEST_DEMAND_WINDOW,
    SHORTEST_DEMAND_WINDOW,
    demand_window,
    scale_down_of,
    scale_up_of,
    targets_of,
)
from fairlead.autoscaler.recommendation import Recommendation
from fairlead.autoscaler.signals import Capacity, Demand, Signals
from fairlead.autoscaler.trend import (
    LEVEL_TIMES,
    LONGEST_SECONDS,
    SAMPLE_SECONDS,
    Sample,
    expected,
    level,
    steady,
    trending,
)

LATE_STARTS = 2.0
"""A replica that is not ready after this many starts is no longer expected."""
REGRET_SECONDS = 120.0
"""A scale-down was a mistake if more replicas are wanted within this time."""
REGRET_WINDOWS, REGRET_GROWTH, MOST_REGRET_SECONDS = 2.0, 4.0, 3600.0
"""A mistaken number of replicas is not tried again for the same time, or so many windows of `scaleDown` if that is
longer. Each further mistake, at most an hour after the last is over, counts so many times as long, within the last of
these."""


@dataclass(frozen=True, slots=True)
class Want:
    """One tick."""

    time: float
    """In seconds of a monotonic clock."""
    replicas: int
    """How many replicas the demand asked for by itself."""
    desired: int = 1
    """How many were asked for when the tick began."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A number of replicas and the rate of arrivals when the number was asked for, gone down to, or proved too few."""

    time: float
    replicas: int
    arrivals_per_second: float
    seconds: float = 0.0
    """Of a number that proved too few: how long it is not tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Immutable; `remember` makes the next one."""

    since: float
    """When the first tick was. Before that nothing is known."""
    wants: tuple[Want, ...] = ()
    """Oldest first."""
    capacity: Capacity | None = None
    """The last known capacity of a replica, for a fleet at zero or with late loads."""
    last: Signals | None = None
    """Those of the last tick."""
    settled_at: float | None = None
    """When the number of desired or of ready replicas last changed; None = it has not since the first tick."""
    grown_at: float | None = None
    """When the number of ready replicas last grew; None = it has not since the first tick."""
    active_at: float | None = None
    """When a request last came, waited or ran; None = none has since the first tick."""
    queue_at: float | None = None
    """When a request last waited; None = none has since the first tick."""
    rates: tuple[Sample, ...] = ()
    """The arrivals of the last minutes, oldest first."""
    asks: tuple[Want, ...] = ()
    """When more replicas were asked for, and how many in all; until they are ready, oldest first."""
    asked: Mark | None = None
    """The number asked for with replicas on their way; kept for one demand window after the replicas are ready."""
    shrunk: Mark | None = None
    """The last time that replicas were taken away."""
    regret: Mark | None = None
    """The last number that proved too few soon after a scale-down."""

    def complete(self, signals: Signals) -> Signals:
        """The signals, with the last known capacity where no load tells, when the replicas on their way are expected,
        and the arrivals expected then where they grow."""
        demand, ahead = signals.demand, signals.start_seconds
        known = demand.capacity or self.capacity
        if known is not None and known.step_cost is None and self.capacity is not None:
            known = replace(known, step_cost=self.capacity.step_cost)
        coming = tuple((max(0.0, ask.time + ahead - signals.time), ask.desired) for ask in self.asks)
        demand, known_rates = self._beside_steady(demand), self._rates(signals)
        rates, longer = trending(known_rates, ahead), trending(known_rates, ahead, LEVEL_TIMES)
        lasting = max(demand.likely_per_second, min(level(longer), demand.arrivals_per_second_high))
        arrivals = max(lasting, *(expected(each, ahead=ahead + SAMPLE_SECONDS) for each in (rates, longer)))
        growing = expected(longer, ahead=ahead + SAMPLE_SECONDS, is_sure=False)
        high = max(arrivals, growing, demand.arrivals_per_second_high)
        seen = replace(demand, capacity=known, arrivals_per_second=arrivals, arrivals_per_second_high=high)
        return replace(signals, demand=seen, coming=coming)

    def _beside_steady(self, demand: Demand) -> Demand:
        """Where the rate has been steady, what chance explains is taken for the steady rate."""
        known = steady(self.rates)
        if not known:
            return demand
        rate, most, seconds = level(known, 0.0), level(known, CAREFUL), SAMPLE_SECONDS * len(known)
        beside = tuple(each.beside(rate, seconds, is_queue=demand.waiting > 0) for each in demand.lately)
        if any(each.evidence for each in beside):
            return replace(demand, lately=beside)
        sure, high = (min(each, most) for each in (demand.arrivals_per_second, demand.arrivals_per_second_high))
        return replace(demand, lately=beside, arrivals_per_second=sure, arrivals_per_second_high=high)

    def begun_with(self, capacity: Capacity | None) -> "History":
        """A history with the capacity of a measured profile, used until the first load arrives."""
        return self if capacity is None or self.capacity is not None else replace(self, capacity=capacity)

    def covers(self, now: float, window: float) -> bool:
        """Whether the last `window` seconds were seen in full."""
        return now - self.since >= window

    def settled_seconds(self, signals: Signals) -> float:
        """Seconds since the number of desired or ready replicas last changed."""
        if self.last is not None and _replicas(self.last) != _replicas(signals):
            return 0.0
        return signals.time - (self.since if self.settled_at is None else self.settled_at)

    def borne_seconds(self, signals: Signals) -> float:
        """For how long requests have surely waited for nothing but the present replicas: since these had time to work
        off the queue they found."""
        settled = self.settled_seconds(signals)
        return max(0.0, settled - SHORTEST_DEMAND_WINDOW - (signals.cold_start_seconds or 0.0))

    def borne_by_these(self, signals: Signals) -> Signals:
        """The signals with waits no older than the present replicas: waiting for a start says nothing about these
        replicas. Times per output token count once the answers of the last minute began on these."""
        demand = signals.demand
        answer = demand.output_tokens_per_request * (demand.tpot.percentile(50) or 0.0)
        tpot = demand.tpot if self.settled_seconds(signals) >= LONGEST_DEMAND_WINDOW + answer else Buckets.seconds()
        oldest = min(demand.oldest_wait_seconds, self.borne_seconds(signals))
        return replace(signals, demand=replace(demand, oldest_wait_seconds=oldest, tpot=tpot))

    def quiet_seconds(self, signals: Signals) -> float:
        """For how long nobody has asked for anything, counted from when the last replica became ready."""
        if self.last is not None and signals.ready > self.last.ready:
            return 0.0
        known = (self.since, self.grown_at, self.active_at, signals.time - signals.demand.idle_seconds)
        return signals.time - max(time for time in known if time is not None)

    def most_wanted(self, now: float, window: float) -> int:
        """The largest want within the last `window` seconds; 0 where there is none."""
        return max((want.replicas for want in self._within(now, window)), default=0)

    def least_wanted(self, now: float, window: float) -> int:
        """The smallest want within the last `window` seconds; 0 where not all of them were seen."""
        if not self.covers(now, window):
            return 0
        return min((want.replicas for want in self._within(now, window)), default=0)

    def counts(self, now: float, window: float) -> list[int]:
        """How many replicas were asked for at each tick within the last `window` seconds."""
        return [want.desired for want in self._within(now, window)]

    def remember(self, recommendation: Recommendation, signals: Signals, spec: Autoscaling) -> "History":
        """The history with this tick, less ticks too old for any window."""
        up, down = scale_up_of(spec), scale_down_of(spec)
        longest = max(up.stabilization_window, up.period, down.stabilization_window, down.period)
        now, demand, last = signals.time, signals.demand, self.last or signals
        changed = _replicas(last) != _replicas(signals)
        grown_at = now if signals.ready > last.ready else self.grown_at
        return replace(
            self,
            wants=(*self._within(now, longest), Want(now, recommendation.wanted, signals.desired)),
            capacity=self.complete(signals).demand.capacity,
            queue_at=now if demand.waiting else self.queue_at,
            rates=self._rates(signals),
            asks=self._asks(recommendation, signals),
            last=signals,
            settled_at=now if changed else self.settled_at,
            grown_at=grown_at,
            active_at=max(self.since if self.active_at is None else self.active_at, now - demand.idle_seconds),
            asked=self._asked(recommendation, signals, spec),
            shrunk=Mark(now, signals.desired, demand.arrivals_per_second_high)
            if 0 < signals.desired < last.desired
            else self.shrunk,
            regret=self._regret(recommendation, signals, spec),
        )

    def _within(self, now: float, window: float) -> tuple[Want, ...]:
        return tuple(want for want in self.wants if now - want.time <= window)

    def _rates(self, signals: Signals) -> tuple[Sample, ...]:
        """With the rate of now, where the last one is old enough and every gateway tells."""
        now, back = signals.time, LONGEST_SECONDS
        kept = tuple(each for each in self.rates if now - each.time <= back)
        rate = next((each for each in signals.demand.lately if each.seconds >= SAMPLE_SECONDS), None)
        if rate is None or not signals.is_complete or (kept and now - kept[-1].time < SAMPLE_SECONDS):
            return kept
        return (*kept, Sample(now, rate.per_second))

    def _asks(self, recommendation: Recommendation, signals: Signals) -> tuple[Want, ...]:
        now, number = signals.time, recommendation.replicas
        oldest = now - LATE_STARTS * signals.start_seconds
        kept = tuple(each for each in self.asks if signals.ready < each.desired <= number and each.time >= oldest)
        return (*kept, Want(now, number, number)) if number > signals.desired else kept

    def _asked(self, recommendation: Recommendation, signals: Signals, spec: Autoscaling) -> Mark | None:
        if recommendation.wanted > signals.desired and not self.is_same_demand(signals, spec):
            return Mark(signals.time, recommendation.wanted, signals.demand.arrivals_per_second)
        is_there = not signals.starting and signals.ready >= signals.desired
        is_over = is_there and self.settled_seconds(signals) >= demand_window(spec)
        return None if is_over and recommendation.wanted <= signals.desired else self.asked

    def is_same_demand(self, signals: Signals, spec: Autoscaling) -> bool:
        """Whether arrivals are within the tolerance of the arrivals for which replicas were asked last."""
        tolerance = 1.0 + targets_of(spec).tolerance / 100.0
        return self.asked is not None and (
            signals.demand.arrivals_per_second <= self.asked.arrivals_per_second * tolerance
        )

    def _regret(self, recommendation: Recommendation, signals: Signals, spec: Autoscaling) -> Mark | None:
        shrunk, last, now = self.shrunk, self.regret, signals.time
        is_mistake = shrunk is not None and recommendation.wanted > signals.desired == shrunk.replicas
        if shrunk is not None and is_mistake and now - shrunk.time <= REGRET_SECONDS:
            first = max(REGRET_SECONDS, REGRET_WINDOWS * scale_down_of(spec).stabilization_window)
            seconds = first if last is None else max(first, REGRET_GROWTH * last.seconds)
            rate = signals.demand.arrivals_per_second
            return Mark(now, signals.desired, rate, min(seconds, MOST_REGRET_SECONDS))
        return None if last is not None and now - last.time > last.seconds + MOST_REGRET_SECONDS else last


def _replicas(signals: Signals) -> tuple[int, int]:
    return signals.desired, signals.ready
