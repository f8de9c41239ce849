"""A fleet in virtual time under the real autoscaler: for tests of its loop, thousands of seconds in one.

Requests come at a rate, wait in one gateway for a slot, and run on replicas whose steps cost what `StepCost` says. What
the gateway counts goes through `SignalsLine`, as in a real fleet; replicas take a while to start, and those that go
finish what they have. Time moves in steps of the engine models: coarse, but every queue is a real one.
"""

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from fairlead.api.llmdeployment import Autoscaling
from fairlead.api.signals_message import ModelSignals, ReplicaSignals, SignalsLine, count_seconds, count_tokens
from fairlead.autoscaler.history import History
from fairlead.autoscaler.policy import demand_window
from fairlead.autoscaler.readings import GatewayWindow, Readings
from fairlead.autoscaler.recommend import recommend
from fairlead.autoscaler.recommendation import Recommendation
from fairlead.autoscaler.signals import Signals
from fairlead.routing.replica import Limits
from fairlead_common.messages import StepCost
from fairlead_testing.engine_model import EngineModel, ModelSequence

MODEL = "default/virtual"
WAKE_SECONDS = 0.25
"""From a request for which no replica is ready to a look at it."""
LOOK_SECONDS = 0.1
"""How often it is looked at what the rate is: a time to the next request that was drawn at one rate says nothing at
another."""
NUM_BLOCKS, TOKEN_BUDGET = 10_000, 512
"""Of every engine."""
STEP_SECONDS = 0.02
"""Steps without a prompt that are shorter are taken together up to this: nothing else happens in them."""


@dataclass(slots=True, eq=False, kw_only=True)
class Request(ModelSequence):
    """One request on its way; what is cached of its prompt is computed already."""

    arrived: float


@dataclass(slots=True)
class VirtualReplica:
    """One engine."""

    ready_at: float
    engine: EngineModel
    step_began: float = 0.0
    step_ends: float = math.inf
    """Infinite while none is computed."""
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What clients send."""

    rate: Callable[[float], float]
    """Requests per second at a time; they come independently of one another."""
    prompt_tokens: int = 200
    uncached_tokens: int = 50
    """Of those, on average; between half and half as many again."""
    output_tokens: int = 40
    """On average, spread the same way."""


class VirtualFleet:
    """`run` it and look at `changes`, `sentences` and what clients saw."""

    def __init__(
        self,
        spec: Autoscaling,
        workload: Workload,
        *,
        cost: StepCost,
        slots: int = 8,
        cold_start: float = 20.0,
        tick: float = 1.0,
        replicas: int = 1,
        seed: int = 0,
        told_cost: StepCost | None = None,
    ) -> None:
        """`told_cost`: what the engines say their steps cost, where it is not what they do."""
        self.spec, self.workload, self.cost, self.told_cost = spec, workload, cost, told_cost or cost
        self.slots, self.cold_start, self.tick = slots, cold_start, tick
        self.random = random.Random(seed)
        self.time = 0.0
        self.desired = replicas
        self.replicas = [self._replica(ready_at=0.0) for _ in range(replicas)]
        self.waiting: deque[Request] = deque()
        self.counted = ModelSignals()
        self.window, self.history = GatewayWindow(), History(since=0.0)
        self.changes: list[tuple[float, int]] = []
        """When the count changed, and to what."""
        self.decisions: list[tuple[Signals, Recommendation]] = []
        self.first_tokens: list[tuple[float, float]] = []
        """When each first token came, and how long after the request."""
        self.is_silent = False
        """Whether the gateway says nothing at present; set it while time stands."""
        self._next_arrival, self._arrives = 0.0, False
        """When to look at the rate again, and whether a request comes then."""
        self._draw_arrival()

    def run(self, seconds: float) -> None:
        """Time goes on."""
        end, next_tick = self.time + seconds, self.time + self.tick
        while self.time < end:
            self.time = min(next_tick, self._next_arrival)
            for replica in self.replicas:
                if replica.step_ends < self.time:
                    self.time = replica.step_ends
            if self.time == self._next_arrival:
                self._arrive()
                if self.waiting and not self._ready():
                    next_tick = min(next_tick, self.time + WAKE_SECONDS)
            for replica in [each for each in self.replicas if each.step_ends <= self.time]:
                self._end_step(replica)
            if self.waiting:
                self._dispatch()
            if self.time >= next_tick:
                self._decide()
                next_tick = self.time + self.tick

    def changes_since(self, time: float) -> list[tuple[float, int]]:
        """Those after a time."""
        return [change for change in self.changes if change[0] >= time]

    def _arrive(self) -> None:
        if self._arrives:
            uncached, output = self._spread(self.workload.uncached_tokens), self._spread(self.workload.output_tokens)
            self.ask(uncached, output)
        self._draw_arrival()

    def ask(self, uncached: int, output: int) -> Request:
        """One more request comes, with so many tokens to compute and to answer."""
        num_tokens = max(self.workload.prompt_tokens, uncached)
        request = Request(
            arrived=self.time, num_prompt_tokens=num_tokens, num_computed=num_tokens - uncached, max_tokens=output
        )
        self.waiting.append(request)
        self.counted.num_arrivals += 1
        return request

    def _draw_arrival(self) -> None:
        rate = self.workload.rate(self.time)
        seconds = self.random.expovariate(rate) if rate > 0.0 else math.inf
        self._arrives = seconds <= LOOK_SECONDS
        self._next_arrival = self.time + min(seconds, LOOK_SECONDS)

    def _spread(self, mean: int) -> int:
        return max(1, round(self.random.uniform(0.5, 1.5) * mean))

    def _ready(self) -> list[VirtualReplica]:
        return [replica for replica in self.replicas if not replica.draining and replica.ready_at <= self.time]

    def _replica(self, ready_at: float) -> VirtualReplica:
        limits = Limits(max_num_seqs=self.slots, max_num_queued_tokens=10**9)
        engine = EngineModel(limits, num_blocks=NUM_BLOCKS, token_budget=TOKEN_BUDGET, step_cost=self.cost)
        return VirtualReplica(ready_at, engine)

    def _dispatch(self) -> None:
        while self.waiting:
            free = [replica for replica in self._ready() if replica.engine.num_requests < self.slots]
            if not free:
                return
            replica = min(free, key=lambda each: each.engine.num_requests)
            request = self.waiting.popleft()
            self.counted.prompt_tokens += request.num_prompt_tokens
            self.counted.uncached_prompt_tokens += request.num_uncomputed
            count_tokens(self.counted.uncached_per_request, request.num_uncomputed)
            replica.engine.add(request)
            if (step := replica.engine.step) is None:
                self._begin_step(replica)
            else:
                step.cut(self.time - replica.step_began)
                replica.step_ends = replica.step_began + step.seconds

    def _begin_step(self, replica: VirtualReplica) -> None:
        step = replica.engine.begin_step(together_seconds=STEP_SECONDS)
        replica.step_began = self.time
        replica.step_ends = math.inf if step is None else self.time + step.seconds

    def _end_step(self, replica: VirtualReplica) -> None:
        had_prefills = replica.engine.step is not None and bool(replica.engine.step.prefills)
        ended = replica.engine.end_step()
        if had_prefills:
            for request in ended.answered:
                if request.num_generated == 1:
                    assert isinstance(request, Request)
                    seconds = self.time - request.arrived
                    self.first_tokens.append((self.time, seconds))
                    count_seconds(self.counted.ttft, seconds)
        if ended.finished:
            self.counted.output_tokens += sum(request.num_generated for request in ended.finished)
            self.counted.num_ended += len(ended.finished)
            self.counted.num_answered += len(ended.finished)
        self._begin_step(replica)
        if replica.draining and not replica.engine.num_requests:
            self.replicas.remove(replica)

    def line(self) -> SignalsLine:
        """What the gateway says now."""
        self.counted.waiting = len(self.waiting)
        self.counted.oldest_wait_seconds = self.time - self.waiting[0].arrived if self.waiting else 0.0
        self.counted.waiting_uncached_tokens = sum(request.num_uncomputed for request in self.waiting)
        self.counted.running = sum(replica.engine.num_requests for replica in self.replicas)
        ready = [(number, each) for number, each in enumerate(self.replicas) if each.ready_at <= self.time]
        self.counted.replicas = {f"uid-{id(each)}": self._load(number, each) for number, each in ready}
        self.counted.num_ready = len(self._ready())
        model = msgspec.convert(msgspec.to_builtins(self.counted), ModelSignals)  # as it goes over the wire
        return SignalsLine(gateway="only", uptime_seconds=self.time, models={MODEL: model})

    def _load(self, number: int, replica: VirtualReplica) -> ReplicaSignals:
        figures = replica.engine.load().figures | {"draining": replica.draining, "step_cost": self.told_cost}
        return ReplicaSignals(name=f"virtual-{number}", age_seconds=0.0, **figures)

    def signals(self) -> Signals:
        """What the autoscaler sees now."""
        if not self.is_silent:
            self.window = self.window.hear(self.line(), self.time)
        demand = Readings(self.time, (self.window,), 0).demand(MODEL, demand_window(self.spec))
        going = [replica for replica in self.replicas if replica.draining]
        ready = len(self._ready())
        return Signals(
            time=self.time, desired=self.desired, ready=ready,
            starting=len(self.replicas) - ready - len(going), draining=len(going), demand=demand,
            cold_start_seconds=self.cold_start,
        )  # fmt: skip

    def _decide(self) -> None:
        signals = self.signals()
        recommendation = recommend(signals, self.spec, self.history)
        self.history = self.history.remember(recommendation, signals, self.spec)
        self.decisions.append((signals, recommendation))
        if recommendation.replicas != self.desired:
            self.changes.append((self.time, recommendation.replicas))
            self._scale(recommendation.replicas)

    def _scale(self, replicas: int) -> None:
        kept = [replica for replica in self.replicas if not replica.draining]
        for replica in sorted(kept, key=lambda each: each.engine.num_requests)[: max(0, len(kept) - replicas)]:
            replica.draining = True
            if not replica.engine.num_requests:
                self.replicas.remove(replica)
        self.replicas += [self._replica(self.time + self.cold_start) for _ in range(replicas - len(kept))]
        self.desired = replicas
