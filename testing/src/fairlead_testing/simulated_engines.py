"""Engine models under a real `Router`: for tests of routing by what it does to time to first token.

Steps take what `StepCost` says, give or take some noise; changes of blocks and loads are published as by a real engine.
One gateway routes requests that come at random. Nothing sleeps; a run of minutes takes seconds.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import msgspec

from fairlead.api.llmdeployment import Routing, RoutingPolicy
from fairlead.routing.datastore import Datastore
from fairlead.routing.in_flight import InFlightRequest
from fairlead.routing.policies import make_policy
from fairlead.routing.prompt import Prompt
from fairlead.routing.replica import Limits, Load
from fairlead.routing.router import Router
from fairlead_common.blocks import num_cacheable_blocks
from fairlead_common.messages import StepCost
from fairlead_testing.block_cache import AdapterSlots
from fairlead_testing.engine_model import EngineModel, ModelSequence
from fairlead_testing.routing import BLOCK_SIZE, DIGEST, make_prompt, make_replica

GATEWAY = "gateway"
BUSY_SECONDS, IDLE_SECONDS = 0.1, 1.0
"""Between load lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The fleet."""

    num_replicas: int = 3
    cost: StepCost = field(default_factory=lambda: StepCost(base=0.004, prefill_token=0.0002, decode_seq=0.0005))
    noise: float = 0.1
    """Steps take up to this much more or less than they should."""
    max_num_seqs: int = 16
    token_budget: int = 256
    num_blocks: int = 2000
    """Blocks that each replica's cache holds."""
    latency: float = 0.002
    """Seconds that everything takes between gateway and engine."""
    adapter_seconds: Mapping[str, float] = field(default_factory=dict)
    """The adapters that every replica serves: what loading each takes."""
    adapter_slots: int | None = None
    """How many of them have a place at once; None = all."""


@dataclass(slots=True)
class Arrival:
    """A request that a client sends."""

    at: float
    prompt: Prompt
    num_output: int


@dataclass(slots=True, eq=False, kw_only=True)
class Served(ModelSequence):
    """A request and what became of it."""

    arrival: Arrival
    sent: InFlightRequest | None = None
    first_token_at: float = 0.0

    @classmethod
    def of(cls, arrival: Arrival) -> "Served":
        """As it is before anything has happened."""
        num_tokens = arrival.prompt.num_tokens
        return cls(
            num_prompt_tokens=num_tokens,
            max_tokens=arrival.num_output,
            hashes=arrival.prompt.by_digest[DIGEST][0].hashes(BLOCK_SIZE),
            num_cacheable=num_cacheable_blocks(num_tokens, BLOCK_SIZE),
            adapter=arrival.prompt.adapter,
            arrival=arrival,
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


class SimulatedEngine:
    """One engine; `events` schedules, `tell` hears (uid, what, arguments) on the gateway's side."""

    def __init__(
        self, uid: str, setup: Setup, events: "Events", tell: Callable[..., None], noise: random.Random
    ) -> None:
        self.uid, self.setup, self._events, self._tell, self._noise = uid, setup, events, tell, noise
        limits = Limits(max_num_seqs=setup.max_num_seqs, max_num_queued_tokens=10**9, block_size=BLOCK_SIZE)
        self.model = EngineModel(
            limits,
            num_blocks=setup.num_blocks,
            token_budget=setup.token_budget,
            step_cost=setup.cost,
            adapters=AdapterSlots(setup.adapter_seconds, setup.adapter_slots),
        )
        self._came: list[Served] = []
        """During the running step."""
        self.most_at_once = 0
        """Requests that were ever here at the same time."""
        self._step_began = 0.0
        self._seq = 0
        self._seen = 0
        self._figures = self.model.load()
        """As of the end of the last step."""
        self._tell_later("listed", uid, 0, ())
        self._tell_load(0)

    def submit(self, request: Served) -> None:
        """A request arrives."""
        self._came.append(request)
        self.most_at_once = max(self.most_at_once, len(self._came) + self.model.num_requests)
        if self.model.step is None:
            self._begin_step()
            self._tell_load(self._load_lines + 1)

    def _begin_step(self) -> None:
        for request in self._came:
            self.model.add(request)
            self._seen = max(self._seen, request.sent.dispatch if request.sent else 0)
        self._came.clear()
        if (step := self.model.begin_step()) is not None:
            self._step_began = self._events.now
            self._events.after(step.seconds * (1 + self.setup.noise * self._noise.uniform(-1, 1)), self._end_step)

    def _end_step(self) -> None:
        ended = self.model.end_step()
        for request in ended.answered:
            if request.num_generated == 1:
                self._tell_later("first_token", request)
        for request in ended.finished:
            self._tell_later("ended", request)
        if (changes := self.model.cache.take_changes()) is not None:
            stored, removed = changes
            self._seq += 1
            hashes = [bytes.fromhex(each) for blocks in stored for each in blocks.hashes]
            self._tell_later("changed", self.uid, self._seq, hashes, [bytes.fromhex(each) for each in removed])
        self._figures = self.model.load(seq=self._seq, seen={GATEWAY: self._seen})
        self._begin_step()

    def _tell_later(self, what: str, *arguments: object) -> None:
        self._events.after(self.setup.latency, lambda: self._tell(what, *arguments))

    def _tell_load(self, number: int) -> None:
        """A load line now and, if no other has come between, the next one after its interval."""
        self._load_lines = number
        is_busy = self.model.step is not None
        age = self._events.now - self._step_began if is_busy else 0.0
        line = msgspec.structs.replace(self._figures, step_age_seconds=age)
        self._tell_later(
            "loaded", self.uid, Load(time=self._events.now + self.setup.latency, **msgspec.structs.asdict(line))
        )
        self._events.after(
            BUSY_SECONDS if is_busy else IDLE_SECONDS,
            lambda: self._tell_load(number + 1) if self._load_lines == number else None,
        )


class Events:
    """Virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Calls later; what is due at the same time comes in the order it was asked for."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._number), call))

    def run(self, is_done: Callable[[], bool]) -> None:
        """Until it is done."""
        while not is_done():
            self.now, _, call = heapq.heappop(self._heap)
            call()


class Simulation:
    """A gateway with one router, and its engines."""

    def __init__(self, policy: str, setup: Setup, seed: int) -> None:
        self.setup = setup
        self.events = Events()
        self.datastore = Datastore()
        self.router = Router(make_policy(Routing(policy=RoutingPolicy(policy))), self.datastore, GATEWAY)
        uids = [f"r{number}" for number in range(setup.num_replicas)]
        replicas = [make_replica(uid, setup.max_num_seqs, adapters=setup.adapter_seconds) for uid in uids]
        self.router.set_replicas(replicas)
        noise = random.Random(seed)
        self.engines = {uid: SimulatedEngine(uid, setup, self.events, self._hear, noise) for uid in uids}
        self.queue: deque[Served] = deque()
        self.ended: list[Served] = []

    def run(self, arrivals: Iterable[Arrival]) -> list[Served]:
        """All of them to their ends."""
        requests = [Served.of(arrival) for arrival in arrivals]
        for request in requests:
            self.events.after(request.arrival.at, lambda request=request: self._arrive(request))  # type: ignore[misc]
        self.events.run(lambda: len(self.ended) == len(requests))
        return requests

    def _arrive(self, request: Served) -> None:
        self.queue.append(request)
        self._pump()

    def _pump(self) -> None:
        while self.queue and (sent := self.router.route(self.queue[0].arrival.prompt, self.events.now)):
            request = self.queue.popleft()
            request.sent = sent
            engine = self.engines[request.sent.uid]
            self.events.after(self.setup.latency, lambda engine=engine, request=request: engine.submit(request))  # type: ignore[misc]

    def _hear(self, what: str, *arguments: object) -> None:
        now = self.events.now
        if what in ("listed", "changed", "loaded"):
            getattr(self.datastore, what)(*arguments)
        else:
            (request,) = arguments
            assert isinstance(request, Served)
            assert request.sent is not None
            if what == "first_token":
                request.first_token_at = now
                self.router.first_token(request.sent, now)
            else:
                self.router.release(request.sent, now)
                self.ended.append(request)
        self._pump()


def shared_prefixes(
    seed: int, *, num: int, rate: float, num_documents: int = 12, document_tokens: int = 1000, question_tokens: int = 60
) -> list[Arrival]:
    """Questions about documents, some of which are asked about more often (the k-th in proportion to 1/k)."""
    rng = random.Random(seed)
    documents = [[rng.randrange(50_000) for _ in range(document_tokens)] for _ in range(num_documents)]
    weights = [1 / (rank + 1) for rank in range(num_documents)]
    return list(
        _arrivals(
            rng,
            num,
            rate,
            lambda: rng.choices(documents, weights)[0] + [rng.randrange(50_000) for _ in range(question_tokens)],
        )
    )


def unshared(seed: int, *, num: int, rate: float, longest: int = 600) -> list[Arrival]:
    """Prompts of any length that have nothing in common."""
    rng = random.Random(seed)
    return list(_arrivals(rng, num, rate, lambda: [rng.randrange(50_000) for _ in range(rng.randint(50, longest))]))


def adapted(seed: int, adapters: Sequence[str], *, num: int, rate: float) -> list[Arrival]:
    """Short prompts that have nothing in common, for adapters some of which are asked for more often (the k-th in
    proportion to 1/k)."""
    rng = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(len(adapters))]
    arrivals = list(_arrivals(rng, num, rate, lambda: [rng.randrange(50_000) for _ in range(rng.randint(30, 120))]))
    for arrival in arrivals:
        arrival.prompt.adapter = rng.choices(adapters, weights)[0]
    return arrivals


def _arrivals(rng: random.Random, num: int, rate: float, tokens: Callable[[], list[int]]) -> Iterable[Arrival]:
    now = 2.0  # loads are known by then
    for _ in range(num):
        now += rng.expovariate(rate)
        token_ids = tokens()
        affinity = ",".join(map(str, token_ids[:20]))
        yield Arrival(now, make_prompt(token_ids, affinity=affinity), rng.randint(5, 60))
