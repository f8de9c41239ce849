"""Readings: the recent lines of every gateway → the Demand for one model.

Fed by the operator with each line from `fleet/gateways.py`. Counters become differences within one run of a gateway: a
restart begins anew and never counts backwards. Knows nothing of replicas or targets.

Rates and averages per request are of the last 60 s; `History` goes by the counts of each tick (`arrivals.py`).
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from fairlead.api.scaling_policy import LONGEST_DEMAND_WINDOW, SHORTEST_DEMAND_WINDOW
from fairlead.api.signals_message import ModelSignals, ReplicaSignals, SignalsLine
from fairlead.demand.arrivals import Count
from fairlead.demand.buckets import Buckets
from fairlead.demand.signals import Capacity, Demand
from fairlead_common.wire.messages import LOAD_STALE_SECONDS

STALE_SECONDS = 5.0
"""A gateway silent for longer (lines come every second) may have unreported requests."""
LASTING_SECONDS = 3.0
"""A request that was the oldest for all of this time waits in earnest."""
ASSUMED_OUTPUT_TOKENS = 128.0
"""Tokens per answer, until the first answer has ended."""
_KEPT_SECONDS = 0.5
"""A line replaces the line before within this time: ten requests to a sleeping model make ten lines."""
_NOTHING = ModelSignals()


@dataclass(frozen=True, slots=True)
class Heard:
    """One line of a gateway."""

    time: float
    """Arrival, in seconds of the reader's monotonic clock."""
    line: SignalsLine


@dataclass(frozen=True, slots=True)
class HeardLoad:
    """What a gateway said of one engine."""

    time: float
    """When the engine sent it, on the reader's clock."""
    model: str
    """The LLMDeployment that it serves: `namespace/name`."""
    load: ReplicaSignals


def newest_loads(latest: Iterable[Heard], only: str = "") -> Mapping[str, HeardLoad]:
    """The newest load of each engine, by its pod's uid. `only`: of one model; empty = all models."""
    newest: dict[str, HeardLoad] = {}
    for heard in latest:
        models = {only: heard.line.models.get(only, _NOTHING)} if only else heard.line.models
        for name, model in models.items():
            for uid, load in model.replicas.items():
                time = heard.time - load.age_seconds
                if uid not in newest or newest[uid].time < time:
                    newest[uid] = HeardLoad(time, name, load)
    return newest


@dataclass(frozen=True, slots=True)
class Span:
    """The counts of one gateway for one model between two lines."""

    seconds: float
    """0 where only one line is known."""
    now: ModelSignals
    then: ModelSignals

    def count(self, name: str) -> int:
        """How much a counter has grown."""
        return max(0, getattr(self.now, name) - getattr(self.then, name)) if self.seconds > 0.0 else 0

    def buckets(self, name: str) -> Buckets:
        """What came into buckets."""
        make = Buckets.tokens if name == "uncached_per_request" else Buckets.seconds
        return make(getattr(self.now, name)).since(make(getattr(self.then, name))) if self.seconds > 0.0 else make()


@dataclass(frozen=True, slots=True)
class GatewayWindow:
    """A gateway's lines of the last minute. Immutable; `hear` makes the next one."""

    lines: tuple[Heard, ...] = ()
    """Of one run of the gateway, oldest first."""
    active_at: Mapping[str, float] = field(default_factory=dict)
    """When a request for a model last came, waited or ran, by `namespace/name`, on the reader's clock."""

    @property
    def latest(self) -> Heard:
        """The last line; the window must not be empty."""
        return self.lines[-1]

    def hear(self, line: SignalsLine, now: float) -> "GatewayWindow":
        """The window with one more line. A new run of the gateway starts an empty window."""
        last = self.lines[-1] if self.lines else None
        same_run = last is not None and last.line.gateway == line.gateway
        lines = self.lines if same_run else ()
        if last is not None and same_run and line.uptime_seconds < last.line.uptime_seconds:
            return self
        if len(lines) > 1 and lines[-1].line.uptime_seconds - lines[-2].line.uptime_seconds < _KEPT_SECONDS:
            lines = lines[:-1]
        begin = line.uptime_seconds - LONGEST_DEMAND_WINDOW
        num_before = sum(heard.line.uptime_seconds <= begin for heard in lines)
        kept = lines[max(0, num_before - 1) :]  # with the one to compare with at the window's beginning
        active_at = dict(self.active_at)
        for name, model in line.models.items():
            before = last.line.models.get(name, _NOTHING).num_arrivals if last is not None and same_run else 0
            if model.waiting or model.running or model.num_arrivals > before:
                active_at[name] = now
            else:
                active_at.setdefault(name, now - line.uptime_seconds)  # none has come since the gateway's start
        return GatewayWindow((*kept, Heard(now, line)), active_at)

    def span(self, model: str, seconds: float) -> Span:
        """The last so many seconds; less where the gateway was not yet running or not yet followed then."""
        latest = self.latest.line
        begin, now = latest.uptime_seconds - seconds, latest.models.get(model, _NOTHING)
        if begin <= 0.0:
            return Span(latest.uptime_seconds, now, _NOTHING)  # counters began at zero with the gateway
        num_before = bisect_right(self.lines, begin, key=lambda heard: heard.line.uptime_seconds)
        base = self.lines[max(0, num_before - 1)].line
        return Span(latest.uptime_seconds - base.uptime_seconds, now, base.models.get(model, _NOTHING))

    def least(self, model: str, name: str, seconds: float) -> float:
        """The minimum of a figure within the last `seconds`."""
        begin = self.latest.line.uptime_seconds - seconds
        first = bisect_left(self.lines, begin, key=lambda heard: heard.line.uptime_seconds)
        return min(float(getattr(heard.line.models.get(model, _NOTHING), name)) for heard in self.lines[first:])


@dataclass(frozen=True, slots=True)
class Readings:
    """Every ready gateway at one moment."""

    time: float
    """Now, on the clock of the lines."""
    windows: tuple[GatewayWindow, ...]
    """Of gateways that have said something."""
    num_missing: int
    """Ready gateways that have never said anything."""

    def demand(self, model: str) -> Demand:
        """The demand for a model (`namespace/name`)."""
        windows, latest = self.windows, [each.latest for each in self.windows]
        now = [last.line.models.get(model, _NOTHING) for last in latest]
        newest, workload = (
            [each.span(model, seconds) for each in windows]
            for seconds in (SHORTEST_DEMAND_WINDOW, LONGEST_DEMAND_WINDOW)
        )
        ages = [self.time - last.time for last in latest]
        oldest = self.time - LOAD_STALE_SECONDS
        loads = {uid: said.load for uid, said in newest_loads(latest, model).items() if said.time >= oldest}
        rate = sum(each.count("num_arrivals") / max(SHORTEST_DEMAND_WINDOW, each.seconds) for each in workload)
        waiting, uncached = (
            sum(getattr(each, name) for each in now) for name in ("waiting", "waiting_uncached_tokens")
        )
        waiting_uncached = uncached / waiting if waiting else 0.0  # all that is known before a first one was dispatched
        return Demand(
            waiting=waiting,
            waiting_uncached_tokens=uncached,
            oldest_wait_seconds=max(
                (each.least(model, "oldest_wait_seconds", LASTING_SECONDS) for each in windows), default=0.0
            ),
            running=sum(each.running for each in now),
            batch_kv_tokens=sum(each.batch_kv_tokens for each in now),
            lasting_running=sum(each.least(model, "running", SHORTEST_DEMAND_WINDOW) for each in windows),
            arrivals_per_second=rate,
            arrivals_per_second_high=rate,
            num_recent_arrivals=sum(each.count("num_arrivals") for each in newest),
            counted={
                last.line.gateway: Count(each.num_arrivals, last.line.uptime_seconds)
                for last, each in zip(latest, now, strict=True)
            },
            uncached_tokens_per_request=_mean(workload, "uncached_prompt_tokens", _dispatched, waiting_uncached),
            prompt_tokens_per_request=_mean(workload, "prompt_tokens", _dispatched, waiting_uncached),
            output_tokens_per_request=_mean(workload, "output_tokens", _answered, ASSUMED_OUTPUT_TOKENS),
            uncached_per_request=reduce(
                Buckets.plus, (each.buckets("uncached_per_request") for each in workload), Buckets.tokens()
            ),
            ttft=_times(workload, "ttft"),
            recent_ttft=_times(newest, "ttft"),
            predicted_ttft=_times(workload, "predicted_ttft"),
            tpot=_times(workload, "tpot"),
            recent_tpot=_times(newest, "tpot"),
            idle_seconds=self.time - max((each.active_at.get(model, -math.inf) for each in windows), default=self.time),
            loads=loads,
            capacity=Capacity.of(loads.values()),
            age_seconds=max(ages, default=0.0),
            num_gateways=len(windows),
            num_missing=self.num_missing,
            num_stale=sum(age > STALE_SECONDS for age in ages),
        )


def _times(spans: Iterable[Span], name: str) -> Buckets:
    return reduce(Buckets.plus, (span.buckets(name) for span in spans), Buckets.seconds())


def _mean(spans: Sequence[Span], name: str, number: Callable[[Span], int], otherwise: float) -> float:
    """A counter per request: over the spans, else since the gateways' start, else `otherwise`."""
    ever = [Span(math.inf, span.now, _NOTHING) for span in spans]
    for each in (spans, ever):
        if requests := sum(map(number, each)):
            return sum(span.count(name) for span in each) / requests
    return otherwise


def _dispatched(span: Span) -> int:
    return span.buckets("uncached_per_request").total


def _answered(span: Span) -> int:
    return span.count("num_answered")
