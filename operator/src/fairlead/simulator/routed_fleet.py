"""RoutedFleet: engine models behind a real `Router`, for what routing does to time to first token.

One gateway routes requests of given arrival times. Engines publish blocks and loads as real engines do, with a delay;
steps cost the seconds of `StepCost`, with some noise.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import msgspec

from fairlead.api.llmdeployment import Routing, RoutingPolicy
from fairlead.routing.datastore import Datastore
from fairlead.routing.in_flight import InFlightRequest
from fairlead.routing.policies import make_policy
from fairlead.routing.prompt import Prompt
from fairlead.routing.replica import Limits, Load, Replica
from fairlead.routing.router import Router
from fairlead.simulator.engine_model import EngineModel, ModelSequence, StepOutcome
from fairlead.simulator.loaded_adapters import LoadedAdapters
from fairlead.simulator.virtual_time import TimedEngine, VirtualTime
from fairlead_common.wire.blocks import num_cacheable_blocks
from fairlead_common.wire.messages import StepCost

GATEWAY = "gateway"
BUSY_SECONDS, IDLE_SECONDS = 0.1, 1.0
"""Between load lines."""
DIGEST = "simulated"
"""The tokenizer of every replica; prompts must have their tokens under this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The fleet."""

    num_replicas: int = 3
    cost: StepCost = field(default_factory=lambda: StepCost(base=0.004, prefill_token=0.0002, decode_seq=0.0005))
    noise: float = 0.1
    """Greatest relative deviation of a step's seconds from its cost."""
    max_num_seqs: int = 16
    token_budget: int = 256
    block_size: int = 16
    num_blocks: int = 2000
    """Blocks in each replica's cache."""
    latency: float = 0.002
    """Seconds of every way between gateway and engine."""
    adapter_seconds: Mapping[str, float] = field(default_factory=dict)
    """By name, seconds to load each adapter; every replica serves all of them."""
    adapter_slots: int | None = None
    """Adapters loaded at once on a replica; None = all."""


@dataclass(slots=True)
class Arrival:
    """A request of a client."""

    at: float
    prompt: Prompt
    num_output: int


@dataclass(slots=True, eq=False, kw_only=True)
class Served(ModelSequence):
    """A request, its way and its times."""

    arrival: Arrival
    is_line: bool = False
    """Whether it is a line of a batch, which is not streamed."""
    sent: InFlightRequest | None = None
    first_token_at: float = 0.0

    @classmethod
    def of(cls, arrival: Arrival, block_size: int, *, is_line: bool = False) -> "Served":
        """At the arrival."""
        num_tokens = arrival.prompt.num_tokens
        return cls(
            num_prompt_tokens=num_tokens,
            max_tokens=arrival.num_output,
            hashes=arrival.prompt.by_digest[DIGEST][0].hashes(block_size),
            num_cacheable=num_cacheable_blocks(num_tokens, block_size),
            adapter=arrival.prompt.adapter,
            arrival=arrival,
            is_line=is_line,
        )

    @property
    def ttft(self) -> float:
        """From arrival to first token, in seconds."""
        return self.first_token_at - self.arrival.at

    @property
    def prediction_error(self) -> float:
        """|predicted - actual| TTFT from dispatch, relative to the actual one."""
        assert self.sent is not None
        assert self.sent.decision.predicted_ttft_seconds is not None
        actual = self.first_token_at - self.sent.dispatched_at
        return abs(self.sent.decision.predicted_ttft_seconds - actual) / actual


class RoutedEngine(TimedEngine):
    """One replica. Everything published reaches the gateway after the latency."""

    def __init__(self, uid: str, fleet: "RoutedFleet", noise: random.Random) -> None:
        setup = fleet.setup
        limits = Limits(max_num_seqs=setup.max_num_seqs, max_num_queued_tokens=10**9, block_size=setup.block_size)
        model = EngineModel(
            limits,
            num_blocks=setup.num_blocks,
            token_budget=setup.token_budget,
            step_cost=setup.cost,
            adapters=LoadedAdapters(setup.adapter_seconds, setup.adapter_slots),
        )
        super().__init__(model, fleet.time, stretch=lambda: 1 + setup.noise * noise.uniform(-1, 1))
        self.uid, self._fleet = uid, fleet
        self.most_at_once = 0
        """Largest number of requests here at the same time."""
        self._seq = 0
        self._seen = 0
        self._load = self.model.load()
        """As of the end of the last step."""
        self._num_lines = 0
        fleet.after_latency(partial(fleet.datastore.listed, uid, 0, ()))
        self._publish_load()

    def arrive(self, request: Served) -> None:
        """Takes a routed request."""
        assert request.sent is not None
        was_idle = self.model.step is None
        self._seen = max(self._seen, request.sent.dispatch)
        self.add(request)
        self.most_at_once = max(self.most_at_once, self.model.num_requests)
        if was_idle:
            self._publish_load()

    def stepped(self, outcome: StepOutcome) -> None:
        fleet, uid = self._fleet, self.uid
        for request in outcome.answered:
            assert isinstance(request, Served)
            if request.num_generated == 1:
                fleet.after_latency(partial(fleet.first_token, request))
            if request in outcome.finished:
                fleet.after_latency(partial(fleet.end, request))
        if (changes := self.model.cache.take_changes()) is not None:
            self._seq += 1
            stored = [bytes.fromhex(each) for blocks in changes[0] for each in blocks.hashes]
            removed = [bytes.fromhex(each) for each in changes[1]]
            fleet.after_latency(partial(fleet.datastore.changed, uid, self._seq, stored, removed))
        self._load = self.model.load(seq=self._seq, seen={GATEWAY: self._seen})

    def _publish_load(self) -> None:
        """A load line now; the next line after the interval, unless another line comes before."""
        self._num_lines = number = self._num_lines + 1
        is_busy = self.model.step is not None
        age = self.time.now - self.step_began if is_busy else 0.0
        line = msgspec.structs.asdict(self._load) | {"step_age_seconds": age}
        load = Load(time=self.time.now + self._fleet.setup.latency, **line)
        self._fleet.after_latency(partial(self._fleet.datastore.loaded, self.uid, load))
        self.time.after(
            BUSY_SECONDS if is_busy else IDLE_SECONDS,
            lambda: self._publish_load() if self._num_lines == number else None,
        )


class RoutedFleet:
    """A gateway with one router and one line, and its engines."""

    def __init__(self, policy: str, setup: Setup, seed: int) -> None:
        self.setup = setup
        self.time = VirtualTime()
        self.datastore = Datastore()
        self.router = Router(make_policy(Routing(policy=RoutingPolicy(policy))), self.datastore, GATEWAY)
        noise = random.Random(seed)
        self.engines = {uid: RoutedEngine(uid, self, noise) for uid in (f"r{n}" for n in range(setup.num_replicas))}
        self.router.set_replicas([
            Replica(
                uid=uid, name=uid, host="", port=0, limits=engine.model.limits, digest=DIGEST,
                adapters=frozenset(setup.adapter_seconds),
            ) for uid, engine in self.engines.items()
        ])  # fmt: skip
        self.queue: deque[Served] = deque()
        self.lines: deque[Served] = deque()
        """Of a batch, that wait for spare capacity."""
        self.num_lines_answered = 0
        self._num_ended = 0

    def run(self, arrivals: Iterable[Arrival], lines: Iterable[Arrival] = ()) -> list[Served]:
        """Serves all requests to their ends, and as many `lines` of a batch meanwhile as there is spare capacity
        for."""
        requests = [Served.of(arrival, self.setup.block_size) for arrival in arrivals]
        of_batch = [Served.of(line, self.setup.block_size, is_line=True) for line in lines]
        for request in [*requests, *of_batch]:
            self.time.at(request.arrival.at, partial(self._arrive, request))
        while self._num_ended < len(requests):
            self.time.advance()
        return requests

    def after_latency(self, call: Callable[[], None]) -> None:
        """Calls when a message sent now arrives, then routes waiting requests."""

        def arrive() -> None:
            call()
            self._route()

        self.time.after(self.setup.latency, arrive)

    def first_token(self, request: Served) -> None:
        """The first token of an answer is here."""
        if request.is_line:
            return
        assert request.sent is not None
        request.first_token_at = self.time.now
        self.router.first_token(request.sent, self.time.now)

    def end(self, request: Served) -> None:
        """An answer is complete."""
        assert request.sent is not None
        if request.is_line:
            self.router.first_token(request.sent, self.time.now, learn=False)
            self.num_lines_answered += 1
        else:
            self._num_ended += 1
        self.router.release(request.sent, self.time.now)

    def _arrive(self, request: Served) -> None:
        if request.is_line:
            self.lines.append(request)
        else:
            self.router.spare.came(self.time.now)
            self.queue.append(request)
        self._route()

    def _route(self) -> None:
        while line := self.queue or self.lines:
            sent = self.router.route(line[0].arrival.prompt, self.time.now, is_spare=line is self.lines)
            if sent is None:
                break
            request = line.popleft()
            request.sent = sent
            self.time.after(self.setup.latency, partial(self.engines[sent.uid].arrive, request))
