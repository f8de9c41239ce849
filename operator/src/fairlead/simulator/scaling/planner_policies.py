"""Formulas that plan by what a replica can do: Dynamo's load and throughput planners, and those that know the load.

Each is a callable: signals of this second → the number of replicas, before bounds; with state of its own.
"""

import math
from dataclasses import dataclass, field

from fairlead.api.scaling_policy import SHORTEST_DEMAND_WINDOW
from fairlead.demand.signals import Demand, Signals
from fairlead.simulator.scaling.in_flight_policies import in_flight, kept
from fairlead.simulator.scaling.loads import Trace

SHARE_OF_STATIC = 0.8
"""Of a replica's capacity, taken at the highest load of a trace."""


@dataclass(slots=True)
class DynamoLoad:
    """The load planner: one more where every engine's estimated time is above the target, one fewer where every one is
    below 0.8 of the target; every 5 s, and not while replicas start or drain. Estimates: the prefill queue, and slots
    taken, in place of a regression of forward passes."""

    slots: int
    target: float
    share: float = 0.7
    """Of the slots, at which the time per output token is at its target."""
    next_at: float = 0.0

    def __call__(self, signals: Signals) -> float:
        demand = signals.demand
        if signals.time < self.next_at or signals.starting or signals.draining or demand.capacity is None:
            return kept(signals)
        self.next_at = signals.time + 5.0
        cost = demand.capacity.step_cost
        ready = max(1, signals.ready)
        wait = 0.0 if cost is None else cost.prefill_token * demand.backlog_tokens / ready
        load = max(wait / self.target, in_flight(signals) / ready / (self.share * self.slots))
        return signals.desired + 1 if load > 1.0 else signals.desired - 1 if load < 0.8 else signals.desired


@dataclass(slots=True)
class DynamoThroughput:
    """The throughput planner with the constant predictor: every 180 s the requests of these 180 s, over those that a
    replica does with a share of the slots, by step costs in place of a profile's interpolation."""

    slots: int
    share: float = 0.7
    seconds: float = 180.0
    """Between two plans."""
    rates: list[float] = field(default_factory=list)
    """Arrivals per second since the last plan."""
    next_at: float | None = None
    planned: int | None = None
    """None = no plan yet."""

    def __call__(self, signals: Signals) -> float:
        self.next_at = signals.time + self.seconds if self.next_at is None else self.next_at
        self.rates.append(signals.demand.num_recent_arrivals / SHORTEST_DEMAND_WINDOW)
        if signals.time >= self.next_at and (each := self.capacity(signals.demand)):
            self.next_at = signals.time + self.seconds
            self.planned = math.ceil(sum(self.rates) / len(self.rates) / each)
            self.rates.clear()
        return kept(signals) if self.planned is None else self.planned

    def capacity(self, demand: Demand) -> float:
        """Requests per second of one replica with this share of the slots taken; 0 = unknown."""
        if demand.capacity is None or (cost := demand.capacity.step_cost) is None:
            return 0.0
        busy = max(1.0, self.share * self.slots)
        step = cost.base + busy * (cost.decode_seq + cost.kv_token * demand.mean_context)
        prefill = cost.prefill_step + cost.prefill_token * demand.uncached_tokens_per_request
        return busy / (demand.output_tokens_per_request * step / cost.tokens_per_decode + busy * prefill)


@dataclass(slots=True)
class Dynamo:
    """Both planners: the plan is the least that the load planner may go down to."""

    load: DynamoLoad
    throughput: DynamoThroughput

    def __call__(self, signals: Signals) -> float:
        number = self.load(signals)
        least = self.throughput(signals)
        return number if self.throughput.planned is None else max(number, least)


@dataclass(slots=True)
class Oracle:
    """Knows the load from now to one cold start and 5 s ahead, and keeps replicas loaded to a share."""

    trace: Trace
    share: float

    def __call__(self, signals: Signals) -> float:
        ahead = self.trace.cold_start + 5.0
        return math.ceil(self.trace.most(signals.time, signals.time + ahead) / self.share - 1e-9)


@dataclass(slots=True)
class Static:
    """Knows the highest load of the trace, and never changes the number."""

    number: int

    @classmethod
    def of(cls, trace: Trace) -> "Static":
        """As many replicas as have room for the highest load."""
        return cls(math.ceil(trace.most(trace.quiet, trace.end) / SHARE_OF_STATIC - 1e-9))

    def __call__(self, signals: Signals) -> float:
        return self.number


@dataclass(slots=True)
class AtOnce:
    """Knows the load up to now, and asks for `most_replicas` in the second in which the load exceeds that of the start.
    Who does not know the future, and begins as small, attains no more."""

    trace: Trace

    def __call__(self, signals: Signals) -> float:
        trace = self.trace
        has_risen = trace.most(0.0, signals.time) > trace.capacities(0.0)
        return trace.most_replicas if has_risen else trace.replicas
