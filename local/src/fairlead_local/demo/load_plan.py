"""The load of the demo: clients that ask again after each answer, so that the load follows the speed of the machine.

The rule of the autoscaler decides the number of clients and the length of answers: the module calls the rule with the
counts that gateways would report for the newest loads of the engines.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from fairlead.api.llmdeployment import Autoscaling
from fairlead.api.scaling_policy import LONGEST_DEMAND_WINDOW, scale_to_zero_after, targets_of
from fairlead.api.signals_message import ModelSignals, ReplicaSignals, SignalsLine, count_tokens
from fairlead.autoscaler.history import History
from fairlead.autoscaler.prediction import slot_seconds
from fairlead.autoscaler.want import want
from fairlead.client.load_generator import LoadGenerator
from fairlead.client.openai import OpenAIClient
from fairlead.client.workload import Conversation
from fairlead.demand.arrivals import Arrivals, Count
from fairlead.demand.readings import GatewayWindow, Readings
from fairlead.demand.record import DemandRecord
from fairlead.demand.signals import Capacity, Demand, Signals
from fairlead.routing.predictor import step_seconds
from fairlead_common.wire.messages import StepCost

ANSWER_TOKENS = 256
"""Length of answers under high load; few clients ask for shorter answers, easy work for a single replica."""
SHORTEST_ANSWER_TOKENS = 8
SPARE_CLIENTS = 2
"""Clients beyond the number by the rule: a just answered client is not waiting."""
MOST_WAITING = 64
"""Most clients beyond the slots of a replica to try."""
RESERVE = 1.5
"""Factor by which steps may get dearer while the low load stays low."""
LONGEST_PAUSE_SECONDS = 5.0
SILENCE_SHARE = 1 / 3
"""Longest pause between requests, as a share of the idle time after which the last replica goes."""
_MODEL = "a/model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Clients that ask at the same time."""

    clients: int
    output_tokens: int = ANSWER_TOKENS
    """Of each answer."""
    every_seconds: float = 0.0
    """Least time between two requests of a client, which asks again after the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Newest loads of replicas, and the mean sizes of a prompt."""

    loads: Sequence[ReplicaSignals]
    """Loads of ready replicas with a known step cost; at least one."""
    prompt_tokens: float
    uncached_tokens: float

    @property
    def capacity(self) -> Capacity:
        """Of one replica."""
        capacity = Capacity.of(self.loads)
        if capacity is None or capacity.step_cost is None:
            raise ValueError("the engine has not learnt what its steps cost")
        return capacity

    def dearer(self, by: float) -> "Speed":
        """A copy with steps that cost `by` times as much."""
        names, change = set(StepCost.__struct_fields__) - {"residual", "tokens_per_decode"}, msgspec.structs.replace
        loads = []
        for load in self.loads:
            cost = {name: by * getattr(load.step_cost, name) for name in names}
            loads.append(change(load, step_cost=change(load.step_cost, **cost)))
        return replace(self, loads=loads)

    def seconds(self, running: float, output_tokens: int = ANSWER_TOKENS) -> float:
        """Seconds that a request holds a slot while `running` requests run on a replica."""
        capacity = self.capacity
        assert capacity.step_cost is not None
        demand = Demand(
            prompt_tokens_per_request=self.prompt_tokens,
            uncached_tokens_per_request=self.uncached_tokens,
            output_tokens_per_request=output_tokens,
        )
        return slot_seconds(demand, replace(capacity, max_num_seqs=math.ceil(running)), capacity.step_cost)

    def __str__(self) -> str:
        slots, capacity = self.capacity.max_num_seqs, self.capacity
        assert capacity.step_cost is not None
        context = slots * (self.prompt_tokens + ANSWER_TOKENS / 2)
        step = step_seconds(capacity.step_cost, running=slots, kv_tokens=context)
        seconds = self.seconds(slots)
        return (
            f"a decode step of {slots} takes {step * 1000:.2f} ms, so a request holds its slot for {seconds:.2f} s and "
            f"one replica takes {slots / seconds:.1f} requests/s when alone"
        )


def wanted(crowd: Crowd, speed: Speed, spec: Autoscaling, *, ready: int) -> int:
    """Replicas that the autoscaler wants after a minute of this crowd on `ready` replicas."""
    slots = ready * speed.capacity.max_num_seqs
    running = min(crowd.clients, slots)
    answered = speed.seconds(running / ready, crowd.output_tokens) * crowd.clients / running
    per_second = crowd.clients / max(answered, crowd.every_seconds)
    window, minute, arrivals, before = GatewayWindow(), int(LONGEST_DEMAND_WINDOW), Arrivals(), 0
    for second in range(minute + 1):
        to_come = math.ceil(per_second * (minute - second))  # the last one just now, as chance has it
        number = 1 + math.floor(per_second * minute) - to_come
        model = _counted(number, crowd, speed, waiting=crowd.clients - running, running=running, ready=ready)
        line = SignalsLine(gateway="", uptime_seconds=second, models={_MODEL: model})
        window = window.hear(line, second)
        arrivals, before = arrivals.counting(Count(number - before, 1.0)), number
    demand = Readings(minute, (window,), 0).demand(_MODEL)
    signals = Signals(time=minute, desired=ready, ready=ready, starting=0, draining=0, demand=demand)
    history = History(since=0.0, demand=DemandRecord(arrivals=arrivals, counted=demand.counted))
    return want(history.complete(signals), spec, history).replicas


def _counted(number: int, crowd: Crowd, speed: Speed, *, waiting: int, running: int, ready: int) -> ModelSignals:
    """Signals of a gateway after `number` requests, with replicas of the known speed and otherwise idle."""
    sizes = ModelSignals().uncached_per_request
    count_tokens(sizes, round(speed.uncached_tokens))
    return ModelSignals(
        num_arrivals=number,
        num_ended=number,
        num_answered=number,
        prompt_tokens=round(number * speed.prompt_tokens),
        uncached_prompt_tokens=round(number * speed.uncached_tokens),
        output_tokens=number * crowd.output_tokens,
        waiting=waiting,
        waiting_uncached_tokens=round(waiting * speed.uncached_tokens),
        running=running,
        uncached_per_request=[number * each for each in sizes],
        num_ready=ready,
        replicas={
            str(uid): msgspec.structs.replace(
                load, age_seconds=0.0, queued_prefill_tokens=0, kv_tokens=0, kv_blocks_free=load.kv_blocks_total
            )
            for uid, load in enumerate(speed.loads)
        },
    )


def many(speed: Speed, spec: Autoscaling) -> Crowd:
    """Clients of which more wait than one replica may let wait, at least two per slot. They ask again when they are
    answered, so their rate says nothing: only the line does."""
    slots, targets = speed.capacity.max_num_seqs, targets_of(spec)
    limits = [MOST_WAITING] if targets.queue_depth is None else [MOST_WAITING, targets.queue_depth]
    if targets.time_to_first_token is not None:
        longest = targets.time_to_first_token * (1 + targets.tolerance / 100)
        limits.append(math.ceil(longest * slots / speed.seconds(slots)))
    return Crowd(clients=max(2 * slots, slots + 1 + min(limits) + SPARE_CLIENTS))


def few(speed: Speed, spec: Autoscaling) -> Crowd:
    """A single client, frequent enough to keep the last replica, with answers that leave a replica plenty of room."""
    silence = scale_to_zero_after(spec)
    pause = LONGEST_PAUSE_SECONDS if silence is None else min(LONGEST_PAUSE_SECONDS, SILENCE_SHARE * silence)
    crowd, dear = Crowd(clients=1, every_seconds=pause), speed.dearer(RESERVE)
    while crowd.output_tokens > SHORTEST_ANSWER_TOKENS and wanted(crowd, dear, spec, ready=2) > 1:
        crowd = replace(crowd, output_tokens=crowd.output_tokens // 2)
    return crowd


class AdjustableLoad(LoadGenerator):
    """A closed loop with a changeable `crowd`, whose length of answers overrides the conversations."""

    def __init__(self, client: OpenAIClient, model: str, crowd: Crowd) -> None:
        super().__init__(client, model)
        self.crowd = crowd

    @property
    def num_answered(self) -> int:
        """Requests with a whole answer."""
        return sum(sample.is_completed for sample in self.samples)

    async def run(self, conversations: Iterator[Conversation]) -> None:
        """Until `stop` was called and every request has ended."""
        await self.changing_loop(
            map(self._asked, conversations), lambda: self.crowd.clients, every_seconds=lambda: self.crowd.every_seconds
        )

    def _asked(self, conversation: Conversation) -> Conversation:
        tokens = {"max_tokens": self.crowd.output_tokens}
        turns = tuple(replace(turn, parameters={**turn.parameters, **tokens}) for turn in conversation.turns)
        return replace(conversation, turns=turns)
