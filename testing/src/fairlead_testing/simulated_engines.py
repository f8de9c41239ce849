"""Engines in virtual time under a real `Router`: for tests of routing by what it does to time to first token.

An engine here has slots, a token budget per step, steps that cost what `StepCost` says (give or take some noise) and a
prefix cache with least-recently-used eviction; it publishes changes of its blocks and loads as a real one does. One
gateway routes requests that come at random. Nothing sleeps; a run of minutes takes seconds.
"""

import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count

from fairlead.api.llmdeployment import PrefixHash
from fairlead.routing.in_flight import Slot
from fairlead.routing.knowledge import Knowledge
from fairlead.routing.load import Load, StepCost
from fairlead.routing.policies import make_policy
from fairlead.routing.predictor import prefill_context, step_seconds
from fairlead.routing.prompt import Prompt
from fairlead.routing.router import Router
from fairlead_protocol.blocks import BlockHash
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


@dataclass(slots=True)
class Arrival:
    """A request that a client sends."""

    at: float
    prompt: Prompt
    num_output: int


@dataclass(slots=True, eq=False)
class Served:
    """A request and what became of it."""

    arrival: Arrival
    slot: Slot | None = None
    first_token_at: float = 0.0
    cached_tokens: int = 0
    """As the engine found when it began."""
    num_computed: int = 0
    num_generated: int = 0

    @property
    def hashes(self) -> list[BlockHash]:
        """Of its prompt's blocks."""
        return self.arrival.prompt.by_digest[DIGEST][0].hashes(BLOCK_SIZE)

    @property
    def num_prompt(self) -> int:
        """Tokens of its prompt."""
        return self.arrival.prompt.num_tokens

    @property
    def ttft(self) -> float:
        """From arrival to first token, in seconds."""
        return self.first_token_at - self.arrival.at

    @property
    def prediction_error(self) -> float:
        """|predicted - actual| TTFT from dispatch, relative to the actual one."""
        assert self.slot is not None
        assert self.slot.decision.predicted_ttft_seconds is not None
        actual = self.first_token_at - self.slot.dispatched_at
        return abs(self.slot.decision.predicted_ttft_seconds - actual) / actual


class SimulatedEngine:
    """One engine; `events` schedules, `tell` hears (uid, what, arguments) on the gateway's side."""

    def __init__(
        self, uid: str, setup: Setup, events: "Events", tell: Callable[..., None], noise: random.Random
    ) -> None:
        self.uid, self.setup, self._events, self._tell, self._noise = uid, setup, events, tell, noise
        self._came: list[Served] = []
        """During the running step."""
        self.waiting: deque[Served] = deque()
        self.running: list[Served] = []
        self.most_at_once = 0
        """Requests that were ever here at the same time."""
        self._cache: OrderedDict[BlockHash, None] = OrderedDict()
        self._batch: list[tuple[Served, int]] = []
        self._step_began: float | None = None
        self._seq = 0
        self._seen = 0
        self._figures = self._load()
        """As of the end of the last step."""
        self._tell_later("listed", uid, 0, ())
        self._tell_load(0)

    def submit(self, request: Served) -> None:
        """A request arrives."""
        self._came.append(request)
        self.most_at_once = max(self.most_at_once, len(self._came) + len(self.waiting) + len(self.running))
        if self._step_began is None:
            self._begin_step()
            self._tell_load(self._load_lines + 1)

    def _begin_step(self) -> None:
        self.waiting.extend(self._came)
        self._seen = max([self._seen, *(request.slot.dispatch for request in self._came if request.slot)])
        self._came.clear()
        budget = self.setup.token_budget - len(self.running)
        self._batch = []
        for request in self.running:
            left = request.num_prompt - request.num_computed
            tokens = min(left, budget + 1) if left > 0 else 1
            self._batch.append((request, tokens))
            budget -= tokens - 1
        for request in list(self.waiting):
            if budget <= 0 or len(self.running) >= self.setup.max_num_seqs:
                break
            num_cached = self._num_cached(request.hashes)
            if self._is_computing(request, num_cached):
                continue
            self.waiting.remove(request)
            self.running.append(request)
            request.cached_tokens = request.num_computed = num_cached * BLOCK_SIZE
            tokens = min(request.num_prompt - request.num_computed, budget)
            self._batch.append((request, tokens))
            budget -= tokens
        if not self._batch:
            self._step_began = None
            return
        self._step_began = self._events.now
        seconds = self._step_seconds() * (1 + self.setup.noise * self._noise.uniform(-1, 1))
        self._events.after(seconds, self._end_step)

    def _step_seconds(self) -> float:
        decodes = [request for request, _ in self._batch if request.num_computed >= request.num_prompt]
        prefills = [(request, tokens) for request, tokens in self._batch if request.num_computed < request.num_prompt]
        return step_seconds(
            self.setup.cost,
            running=len(decodes),
            kv_tokens=sum(request.num_prompt + request.num_generated for request in decodes),
            prefill_tokens=sum(tokens for _, tokens in prefills),
            prefill_context=sum(prefill_context(request.num_computed, tokens) for request, tokens in prefills),
        )

    def _end_step(self) -> None:
        stored: list[BlockHash] = []
        for request, tokens in self._batch:
            if request.num_computed < request.num_prompt:
                before, request.num_computed = request.num_computed, request.num_computed + tokens
                stored += request.hashes[before // BLOCK_SIZE : request.num_computed // BLOCK_SIZE]
            if request.num_computed >= request.num_prompt:
                request.num_generated += 1
                if request.num_generated == 1:
                    self._tell_later("first_token", request)
                if request.num_generated >= request.arrival.num_output:
                    self.running.remove(request)
                    self._tell_later("ended", request)
        if stored:
            self._seq += 1
            self._tell_later("changed", self.uid, self._seq, stored, self._store(stored))
        self._figures = self._load()
        self._begin_step()

    def _store(self, stored: Iterable[BlockHash]) -> list[BlockHash]:
        """Into the cache; what had to go."""
        for block in stored:
            self._cache[block] = None
            self._cache.move_to_end(block)
        surplus = len(self._cache) - self.setup.num_blocks
        return [self._cache.popitem(last=False)[0] for _ in range(surplus)]

    def _num_cached(self, hashes: list[BlockHash]) -> int:
        num = 0
        while num < len(hashes) and hashes[num] in self._cache:
            num += 1
        for block in reversed(hashes[:num]):
            self._cache.move_to_end(block)
        return num

    def _is_computing(self, request: Served, num_cached: int) -> bool:
        """Whether a running request is about to compute the next block of this one."""
        hashes = request.hashes
        return num_cached < len(hashes) and any(
            other.num_computed <= num_cached * BLOCK_SIZE < other.num_prompt
            and hashes[num_cached] in other.hashes[num_cached : num_cached + 1]
            for other in self.running
        )

    def _tell_later(self, what: str, *arguments: object) -> None:
        self._events.after(self.setup.latency, lambda: self._tell(what, *arguments))

    def _tell_load(self, number: int) -> None:
        """A load line now and, if no other has come between, the next one after its interval."""
        self._load_lines = number
        is_busy = self._step_began is not None
        age = 0.0 if self._step_began is None else self._events.now - self._step_began
        line = replace(self._figures, time=self._events.now + self.setup.latency, step_age_seconds=age)
        self._tell_later("loaded", self.uid, line)
        self._events.after(
            BUSY_SECONDS if is_busy else IDLE_SECONDS,
            lambda: self._tell_load(number + 1) if self._load_lines == number else None,
        )

    def _load(self) -> Load:
        left = [each.num_prompt - each.num_computed for each in self.running]
        return Load(
            time=self._events.now,
            running=len(self.running),
            waiting=len(self.waiting),
            queued_prefill_tokens=sum(tokens for tokens in left if tokens > 0) + self._num_waiting_tokens(),
            kv_blocks_free=10**6,
            kv_blocks_total=10**6,
            kv_tokens=sum(each.num_computed + each.num_generated for each in self.running),
            token_budget=self.setup.token_budget,
            max_num_seqs=self.setup.max_num_seqs,
            seq=self._seq,
            seen={GATEWAY: self._seen},
            step_cost=self.setup.cost,
        )

    def _num_waiting_tokens(self) -> int:
        """Of waiting prompts, without what will be cached when it is their turn."""
        coming = {block for each in self.running for block in each.hashes}
        total = 0
        for request in self.waiting:
            hashes, num = request.hashes, 0
            while num < len(hashes) and (hashes[num] in self._cache or hashes[num] in coming):
                num += 1
            total += request.num_prompt - num * BLOCK_SIZE
            coming.update(hashes)
        return total


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
        self.knowledge = Knowledge()
        self.router = Router(make_policy(policy, PrefixHash()), self.knowledge, GATEWAY)
        uids = [f"r{number}" for number in range(setup.num_replicas)]
        self.router.set_replicas([make_replica(uid, setup.max_num_seqs) for uid in uids])
        noise = random.Random(seed)
        self.engines = {uid: SimulatedEngine(uid, setup, self.events, self._hear, noise) for uid in uids}
        self.queue: deque[Served] = deque()
        self.ended: list[Served] = []

    def run(self, arrivals: Iterable[Arrival]) -> list[Served]:
        """All of them to their ends."""
        requests = [Served(arrival) for arrival in arrivals]
        for request in requests:
            self.events.after(request.arrival.at, lambda request=request: self._arrive(request))  # type: ignore[misc]
        self.events.run(lambda: len(self.ended) == len(requests))
        return requests

    def _arrive(self, request: Served) -> None:
        self.queue.append(request)
        self._pump()

    def _pump(self) -> None:
        while self.queue and (routed := self.router.route(self.queue[0].arrival.prompt, self.events.now)):
            request = self.queue.popleft()
            request.slot = routed[1]
            engine = self.engines[request.slot.uid]
            self.events.after(self.setup.latency, lambda engine=engine, request=request: engine.submit(request))  # type: ignore[misc]

    def _hear(self, what: str, *arguments: object) -> None:
        now = self.events.now
        if what in ("listed", "changed", "loaded"):
            getattr(self.knowledge, what)(*arguments)
        else:
            (request,) = arguments
            assert isinstance(request, Served)
            assert request.slot is not None
            if what == "first_token":
                request.first_token_at = now
                self.router.first_token(request.slot, now)
            else:
                self.router.release(request.slot, now)
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


def _arrivals(rng: random.Random, num: int, rate: float, tokens: Callable[[], list[int]]) -> Iterable[Arrival]:
    now = 2.0  # loads are known by then
    for _ in range(num):
        now += rng.expovariate(rate)
        token_ids = tokens()
        affinity = ",".join(map(str, token_ids[:20]))
        yield Arrival(now, make_prompt(token_ids, affinity=affinity), rng.randint(5, 60))
