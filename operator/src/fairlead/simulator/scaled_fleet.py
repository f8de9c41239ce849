"""ScaledFleet: engine models under the real autoscaler, thousands of seconds in one.

Requests arrive at a rate, wait in one gateway for a slot, and run on the replica with the fewest requests. Counts of
the gateway go through `SignalsLine`, as in a real fleet. Replicas take time to start, and finish requests before
leaving.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import NamedTuple

import msgspec

from fairlead.api.llmdeployment import Autoscaling
from fairlead.api.scaling_schedules import bounds_at
from fairlead.api.signals_message import ModelSignals, ReplicaSignals, SignalsLine, count_seconds, count_tokens
from fairlead.autoscaler.history import History
from fairlead.autoscaler.recommend import recommend
from fairlead.autoscaler.recommendation import Recommendation
from fairlead.demand.readings import GatewayWindow, Readings
from fairlead.demand.signals import Signals
from fairlead.routing.replica import Limits
from fairlead.simulator.engine_model import EngineModel, ModelSequence, StepOutcome
from fairlead.simulator.virtual_time import TimedEngine, VirtualTime
from fairlead_common.wire.messages import StepCost

MODEL = "default/virtual"
TICK_SECONDS = 1.0
"""Between decisions of the autoscaler."""
WAKE_SECONDS = 0.25
"""From a request without a ready replica to a decision of the autoscaler."""
LOOK_SECONDS = 0.1
"""Longest time for which one rate holds; the time to the next request is drawn again afterwards."""
NUM_BLOCKS, TOKEN_BUDGET = 10_000, 512
"""Of every engine, where nothing else is said."""
STEP_SECONDS, EQUAL_STEP_SECONDS = 0.02, 10.0
"""Decode steps are joined up to this length (`EngineModel.begin_step`); the second where tokens in the cache cost
nothing, so that joined steps take as long as single ones."""

Decide = Callable[[Signals, Autoscaling, History], Recommendation]
"""A policy: `recommend`, or a rival of a benchmark."""


@dataclass(slots=True, eq=False, kw_only=True)
class Request(ModelSequence):
    """A request; the cached part of the prompt counts as computed."""

    arrived: float
    first_token_at: float = 0.0


class ScaledReplica(TimedEngine):
    """One replica."""

    def __init__(self, fleet: "ScaledFleet", ready_at: float) -> None:
        limits = Limits(max_num_seqs=fleet.slots, max_num_queued_tokens=10**9)
        model = EngineModel(limits, num_blocks=fleet.num_blocks, token_budget=fleet.token_budget, step_cost=fleet.cost)
        super().__init__(
            model, fleet.clock, together_seconds=STEP_SECONDS if fleet.cost.kv_token else EQUAL_STEP_SECONDS
        )
        self._fleet = fleet
        self.uid = f"replica-{next(fleet.numbers)}"
        self.ready_at = ready_at
        self.draining = False

    def stepped(self, outcome: StepOutcome) -> None:
        self._fleet.note(outcome)
        if self.draining and not self.model.num_requests:
            self._fleet.count_replicas()
            self._fleet.replicas.remove(self)


class RecordedRequest(NamedTuple):
    """A request of a recording."""

    time: float
    """Arrival, in seconds since the start of the fleet."""
    prompt_tokens: int
    uncached_tokens: int
    """Prompt tokens to compute, at least 1."""
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The requests of clients: drawn at random, or recorded."""

    rate: Callable[[float], float]
    """Requests per second at a time (Poisson arrivals)."""
    prompt_tokens: int = 200
    uncached_tokens: int = 50
    """On average, uniform between half and one and a half of it."""
    output_tokens: int = 40
    """On average, with the same spread."""
    recorded: Sequence[RecordedRequest] | None = None
    """In the order of arrival, in place of everything above."""


class ScaledFleet:
    """After `run`: `changes`, `decisions`, `first_tokens` and `token_times` tell what happened."""

    def __init__(
        self,
        spec: Autoscaling,
        workload: Workload,
        *,
        cost: StepCost,
        slots: int = 8,
        cold_start: float = 20.0,
        replicas: int = 1,
        seed: int = 0,
        told_cost: StepCost | None = None,
        decide: Decide = recommend,
        num_blocks: int = NUM_BLOCKS,
        token_budget: int = TOKEN_BUDGET,
        begins: datetime = datetime(2026, 1, 1, tzinfo=UTC),
        decisions_kept: int | None = None,
    ) -> None:
        """`told_cost`: the step cost that engines report; None = the true `cost`. `begins`: time of day of the start,
        for schedules of the spec. `decisions_kept`: of the newest; None = all."""
        self._policy = decide
        self.spec, self.workload, self.cost, self.told_cost = spec, workload, cost, told_cost or cost
        self.slots, self.cold_start = slots, cold_start
        self.num_blocks, self.token_budget, self.begins = num_blocks, token_budget, begins
        self._num_asked, self._decisions_kept = 0, decisions_kept
        self.random = random.Random(seed)
        self.clock = VirtualTime()
        self.numbers = count()
        """Of replicas, in the order of their start."""
        self.desired = replicas
        self.replicas = [ScaledReplica(self, ready_at=0.0) for _ in range(replicas)]
        self.waiting: deque[Request] = deque()
        self.counted = ModelSignals()
        self.window, self.history = GatewayWindow(), History(since=0.0)
        self.changes: list[tuple[float, int]] = []
        """Time and new count of each change."""
        self.decisions: list[tuple[Signals, Recommendation]] = []
        self.first_tokens: list[tuple[float, float]] = []
        """Time and TTFT of each first token."""
        self.token_times: list[tuple[float, float]] = []
        """Time of each answer's end, and its mean time per output token after the first one."""
        self.is_silent = False
        """Whether the gateway sends no signals; may be set between runs."""
        self.replica_seconds = 0.0
        """Of all replicas up to the last change, with those that start and drain."""
        self._counted_until = 0.0
        self._next_tick = 0.0
        self._draw_arrival()
        self._tick_at(TICK_SECONDS)

    @property
    def time(self) -> float:
        """Seconds since the start."""
        return self.clock.now

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        end = self.time + seconds
        while self.clock.advance(end):
            if self.waiting:
                self._dispatch()
        self.count_replicas()

    def count_replicas(self) -> None:
        """Adds the time since the last call to `replica_seconds`; called before the number of replicas changes."""
        self.replica_seconds += len(self.replicas) * (self.time - self._counted_until)
        self._counted_until = self.time

    def changes_since(self, time: float) -> list[tuple[float, int]]:
        """Changes at or after a time."""
        return [change for change in self.changes if change[0] >= time]

    def _arrive(self, is_request: bool) -> None:
        """The end of the time drawn last."""
        if is_request:
            self._ask_next()
        if self.waiting and not self._ready():
            self._tick_at(min(self._next_tick, self.time + WAKE_SECONDS))
        self._draw_arrival()

    def _ask_next(self) -> None:
        if self.workload.recorded is None:
            self.ask(self._spread(self.workload.uncached_tokens), self._spread(self.workload.output_tokens))
            return
        _, prompt, uncached, output = self.workload.recorded[self._num_asked]
        self._num_asked += 1
        self.ask(uncached, output, prompt=prompt)

    def ask(self, uncached: int, output: int, *, prompt: int | None = None) -> Request:
        """Adds a request with these numbers of prompt tokens to compute and tokens to generate. `prompt`: all prompt
        tokens; None = the workload's."""
        num_tokens = max(self.workload.prompt_tokens if prompt is None else prompt, uncached)
        request = Request(
            arrived=self.time, num_prompt_tokens=num_tokens, num_computed=num_tokens - uncached, max_tokens=output
        )
        self.waiting.append(request)
        self.counted.num_arrivals += 1
        return request

    def _draw_arrival(self) -> None:
        seconds = self._next_arrival()
        self.clock.after(min(seconds, LOOK_SECONDS), lambda: self._arrive(seconds <= LOOK_SECONDS))

    def _next_arrival(self) -> float:
        """Seconds until the next request comes, if the rate stays; infinite = none does."""
        recorded = self.workload.recorded
        if recorded is not None:
            return max(0.0, recorded[self._num_asked].time - self.time) if self._num_asked < len(recorded) else math.inf
        rate = self.workload.rate(self.time)
        return self.random.expovariate(rate) if rate > 0.0 else math.inf

    def _tick_at(self, time: float) -> None:
        """Schedules the next decision, instead of the decision scheduled before."""
        if time != self._next_tick:
            self._next_tick = time
            self.clock.at(time, lambda: self._decide() if self._next_tick == time else None)

    def _spread(self, mean: int) -> int:
        return max(1, round(self.random.uniform(0.5, 1.5) * mean))

    def _ready(self) -> list[ScaledReplica]:
        return [replica for replica in self.replicas if not replica.draining and replica.ready_at <= self.time]

    def _dispatch(self) -> None:
        while self.waiting:
            free = [replica for replica in self._ready() if replica.model.num_requests < self.slots]
            if not free:
                return
            request = self.waiting.popleft()
            self.counted.prompt_tokens += request.num_prompt_tokens
            self.counted.uncached_prompt_tokens += request.num_uncomputed
            count_tokens(self.counted.uncached_per_request, request.num_uncomputed)
            min(free, key=lambda each: each.model.num_requests).add(request)

    def note(self, outcome: StepOutcome) -> None:
        """The gateway's share of a replica's step."""
        for request in outcome.answered:
            assert isinstance(request, Request)
            if request.num_generated == 1:
                request.first_token_at = self.time
                seconds = self.time - request.arrived
                self.first_tokens.append((self.time, seconds))
                count_seconds(self.counted.ttft, seconds)
        for request in outcome.finished:
            assert isinstance(request, Request)
            if request.num_generated > 1:
                seconds = (self.time - request.first_token_at) / (request.num_generated - 1)
                self.token_times.append((self.time, seconds))
                count_seconds(self.counted.tpot, seconds)
        self.counted.output_tokens += sum(request.num_generated for request in outcome.finished)
        self.counted.num_ended += len(outcome.finished)
        self.counted.num_answered += len(outcome.finished)

    def line(self) -> SignalsLine:
        """The gateway's signals now."""
        self.counted.waiting = len(self.waiting)
        self.counted.oldest_wait_seconds = self.time - self.waiting[0].arrived if self.waiting else 0.0
        self.counted.waiting_uncached_tokens = sum(request.num_uncomputed for request in self.waiting)
        self.counted.running = sum(replica.model.num_requests for replica in self.replicas)
        self.counted.replicas = {each.uid: self._load(each) for each in self.replicas if each.ready_at <= self.time}
        self.counted.num_ready = len(self._ready())
        model = msgspec.convert(msgspec.to_builtins(self.counted), ModelSignals)  # as it goes over the wire
        return SignalsLine(gateway="only", uptime_seconds=self.time, models={MODEL: model})

    def _load(self, replica: ScaledReplica) -> ReplicaSignals:
        figures = replica.model.load().figures | {"draining": replica.draining, "step_cost": self.told_cost}
        return ReplicaSignals(name=replica.uid, age_seconds=0.0, **figures)

    def signals(self) -> Signals:
        """The autoscaler's input now."""
        if not self.is_silent:
            self.window = self.window.hear(self.line(), self.time)
        demand = Readings(self.time, (self.window,), 0).demand(MODEL)
        going = [replica for replica in self.replicas if replica.draining]
        ready = len(self._ready())
        return Signals(
            time=self.time, desired=self.desired, ready=ready,
            starting=len(self.replicas) - ready - len(going), draining=len(going), demand=demand,
            cold_start_seconds=self.cold_start,
        )  # fmt: skip

    def _decide(self) -> None:
        signals = self.signals()
        spec = bounds_at(self.spec, self.begins + timedelta(seconds=self.time))
        recommendation = self._policy(signals, spec, self.history)
        self.history = self.history.remember(recommendation, signals, spec)
        self.decisions.append((signals, recommendation))
        if self._decisions_kept is not None:
            del self.decisions[: -self._decisions_kept]
        if recommendation.replicas != self.desired:
            self.changes.append((self.time, recommendation.replicas))
            self._scale(recommendation.replicas)
        self._tick_at(self.time + TICK_SECONDS)

    def _scale(self, replicas: int) -> None:
        self.count_replicas()
        kept = [replica for replica in self.replicas if not replica.draining]
        for replica in sorted(kept, key=lambda each: each.model.num_requests)[: max(0, len(kept) - replicas)]:
            replica.draining = True
            if not replica.model.num_requests:
                self.replicas.remove(replica)
        self.replicas += [ScaledReplica(self, self.time + self.cold_start) for _ in range(replicas - len(kept))]
        self.desired = replicas
