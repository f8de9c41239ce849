"""History: the earlier ticks, as far as later decisions need them. Plain memory; `recommend` judges."""

import math
from dataclasses import dataclass, field, replace

from fairlead.api.llmdeployment import Autoscaling, ScalingTargets
from fairlead.api.scaling_policy import (
    LONGEST_DEMAND_WINDOW,
    SHORTEST_DEMAND_WINDOW,
    demand_window,
    scale_down_of,
    scale_up_of,
    targets_of,
)
from fairlead.autoscaler.recommendation import Recommendation
from fairlead.demand.arrivals import Count
from fairlead.demand.buckets import Buckets
from fairlead.demand.record import DemandRecord
from fairlead.demand.signals import Signals

LATE_STARTS = 2.0
"""A replica that is not ready after this many starts is no longer expected."""
REGRET_SECONDS = 120.0
"""A scale-down was a mistake if more replicas are wanted within this time."""
REGRET_WINDOWS, REGRET_GROWTH, MOST_REGRET_SECONDS = 2.0, 4.0, 3600.0
"""A mistaken number of replicas is not tried again for the same time, or so many windows of `scaleDown` if that is
longer. Each further mistake, at most an hour after the last is over, counts so many times as long, within the last of
these."""

OLD_SECONDS = 1800.0
"""Lateness is told over the last of these."""
NONE_LATE = Count(0.0, 0.0)


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
    demand: DemandRecord = field(default_factory=DemandRecord)
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
    late: Count = NONE_LATE
    """Seconds for which first tokens were late, each weighted with the share of them, and seconds seen in all; of the
    present replicas since they had time to work off the queue they found. The newer ones weigh more."""
    asks: tuple[Want, ...] = ()
    """When more replicas were asked for, and how many in all; until they are ready, oldest first."""
    asked: Mark | None = None
    """The number asked for with replicas on their way; kept for one demand window after the replicas are ready."""
    shrunk: Mark | None = None
    """The last time that replicas were taken away."""
    regret: Mark | None = None
    """The last number that proved too few soon after a scale-down."""

    def complete(self, signals: Signals) -> Signals:
        """The signals as `DemandRecord.complete` makes them, and when the replicas on their way are expected."""
        ahead = signals.start_seconds
        asks = (ask for ask in self.asks if ask.desired <= signals.desired)
        coming = tuple((max(0.0, ask.time + ahead - signals.time), ask.desired) for ask in asks)
        return replace(self._demand(signals).complete(signals), coming=coming)

    def _demand(self, signals: Signals) -> DemandRecord:
        return self.demand.remember(signals, signals.time - (self.since if self.last is None else self.last.time))

    def _late(self, signals: Signals, targets: ScalingTargets) -> Count:
        """More waiting requests than `queueDepth` count as late altogether."""
        if self.borne_seconds(signals) <= 0.0:
            return NONE_LATE
        demand, target, depth = signals.demand, targets.time_to_first_token, targets.queue_depth
        share = 0.0 if target is None else demand.recent_ttft.share_above(target)
        if depth is not None and demand.waiting > depth * max(1, signals.ready):
            share = 1.0
        seconds = signals.time - (self.last or signals).time
        kept = math.exp(-seconds / OLD_SECONDS)
        return Count(kept * self.late.number + share * seconds, kept * self.late.seconds + seconds)

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
        changed, record = _replicas(last) != _replicas(signals), self._demand(signals)
        seen = record.complete(signals)
        grown_at = now if signals.ready > last.ready else self.grown_at
        return replace(
            self,
            wants=(*self._within(now, longest), Want(now, recommendation.wanted, signals.desired)),
            demand=record,
            queue_at=now if demand.waiting else self.queue_at,
            late=self._late(signals, targets_of(spec)),
            asks=self._asks(recommendation, signals),
            last=signals,
            settled_at=now if changed else self.settled_at,
            grown_at=grown_at,
            active_at=max(self.since if self.active_at is None else self.active_at, now - demand.idle_seconds),
            asked=self._asked(recommendation, seen, spec),
            shrunk=Mark(now, signals.desired, seen.demand.arrivals_per_second)
            if 0 < signals.desired < last.desired
            else self.shrunk,
            regret=self._regret(recommendation, seen, spec),
        )

    def _within(self, now: float, window: float) -> tuple[Want, ...]:
        return tuple(want for want in self.wants if now - want.time <= window)

    def _asks(self, recommendation: Recommendation, signals: Signals) -> tuple[Want, ...]:
        now, number = signals.time, recommendation.replicas
        most = max(number, signals.desired)
        oldest = now - LATE_STARTS * signals.start_seconds
        kept = tuple(each for each in self.asks if signals.ready < each.desired <= most and each.time >= oldest)
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
