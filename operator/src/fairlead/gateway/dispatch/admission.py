"""Admission: a model's waiting line joined to its router; decides which request goes, waits or is refused.

`ModelPool` is the gateway's side of one LLMDeployment. A request is held only while no replica has room, or while none
is ready but one is starting. The order is strict: lowest `priority`, then first come first served. A replica usable by
a waiting request takes no later request, though a shorter prompt might fit; else long prompts would starve. Later
requests go to other replicas (`Claims`), and pass requests that wait only for isolation (suspects of a replica's death)
or for an adapter not loaded anywhere yet. Lines of batches stand behind all others and take spare capacity only
(`routing.spare`). No network I/O: the director awaits the pool, the fleet and the engines'
streams update it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fairlead.fleet.directory import FleetModel, Outlook, Pool
from fairlead.gateway.dispatch.pool_prompts import PoolPrompts
from fairlead.gateway.dispatch.replica_watch import Hangs, WarmUps
from fairlead.gateway.dispatch.ticket import Attempt, Claims, RequestTicket, WaitingLine
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.observation import ModelCounters, Observer
from fairlead.gateway.openai.errors import OpenAIError, QueueOutcome, refusal, unfit, without_adapter
from fairlead.gateway.openai.parse import InferenceRequest
from fairlead.gateway.prompts.reader import PromptReader, Tokenizers
from fairlead.routing.datastore import Datastore
from fairlead.routing.in_flight import InFlightRequest
from fairlead.routing.policies import make_policy
from fairlead.routing.queue import PoolQueue
from fairlead.routing.replica import Load
from fairlead.routing.router import Router
from fairlead_common.openai.prompts import PromptError

logger = logging.getLogger(__name__)

PUMP_GAP_SECONDS = 0.005
"""Least time between two looks at the line because of load lines, of which replicas send many a second."""
SPARE_WAIT_SECONDS = 86400.0
"""Longest wait of a line of a batch, whose window ends it."""
LULL_SECONDS = 1.0
"""A line that begins after this time without waiting requests is reported at once, other lines with the next
signals."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Shared by all models of one gateway process."""

    settings: GatewaySettings
    gateway_id: str
    """Names this run of the gateway to engines and operator."""
    datastore: Datastore
    tokenizers: Tokenizers
    reader: PromptReader


class ModelPool:
    """One model's queue, books and policy. They outlive changes of the model's replicas and spec."""

    def __init__(self, pool: Pool, shared: Shared, on_urgent: Callable[[], None] = lambda: None) -> None:
        """`on_urgent`: called when the autoscaler should hear at once: a request while no replica is ready, or a new
        line."""
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self.pool = pool
        self.datastore = shared.datastore
        self._line = WaitingLine(shared.settings, self._deadline, self._expire)
        self.queue = self._line.queue
        self.router = Router(make_policy(pool.model.routing), shared.datastore, shared.gateway_id)
        self.counters = ModelCounters()
        self.prompts = PoolPrompts(
            shared.reader,
            shared.tokenizers,
            self.queue,
            lambda: self.model.routing.prefix_hash.prefix_char_length,
            on_read=self.pump,
        )
        self._on_urgent = on_urgent
        self._outdated: frozenset[str] = frozenset()
        """Uids of the replicas present when the engines' desired configuration last changed."""
        self._knows_engines = False
        """Whether a replica of the present kind has been seen."""
        self._hangs = Hangs(pool.model.key)
        self._warm_ups = WarmUps()
        self._warm_up: asyncio.TimerHandle | None = None
        """Fires when a replica's warm-up ends without a load."""
        self._draining: set[str] = set()
        """Replicas that say so themselves, by uid."""
        self._wake_up: asyncio.TimerHandle | None = None
        self._next_pump: asyncio.TimerHandle | None = None
        self._pumped_at = float("-inf")
        self._was_ready = False
        self._state_since = self.now()
        self._take_replicas()

    @property
    def model(self) -> FleetModel:
        """What is served, by the newest word."""
        return self.pool.model

    @property
    def num_ready(self) -> int:
        """Replicas that may be sent requests: neither brand new nor on their way out."""
        return len(self.router.replicas) - len(self._draining)

    @property
    def tokenizer_problem(self) -> str | None:
        """Why the prompts for some replicas are not tokenised in the gateway; None = all are."""
        return self.prompts.problem(self.router.replicas)

    @property
    def num_waiting(self) -> int:
        """Requests in line that count as demand."""
        return len(self.queue) if self.model.scale_for_batches else self.queue.num_urgent

    @property
    def num_running(self) -> int:
        """Requests at replicas that count as demand."""
        book = self.router.in_flight
        return book.total if self.model.scale_for_batches else book.total_urgent

    # What the director calls.

    def ticket(self, request: InferenceRequest) -> RequestTicket:
        """A ticket behind all tickets of its priority."""
        request.adapter = self.model.split(request.model)[1]
        number = self.queue.next_number()
        if not request.is_spare:
            self.router.spare.came(self.now())
        ticket = RequestTicket(number, request.num_bytes, request.priority, request.is_spare, request=request)
        if request.is_suspect:
            ticket.suspect(self.now())
        return ticket

    def counters_of(self, ticket: RequestTicket) -> Observer:
        """What counts the request as demand; nothing does for lines of batches, unless the fleet may grow for them."""
        return self.counters if _may_grow_for(ticket, self.model) else Observer()

    async def tokenize(self, ticket: RequestTicket) -> None:
        """Has the prompt read, if the request will wait or be served. Raises OpenAIError where no replica could ever
        serve it."""
        if _is_hopeless(self.pool) or (len(self.queue) and not _has_room(self.queue, ticket)):
            return  # nothing is spent on what `wait` is going to refuse
        await self.prompts.read(ticket)
        self._raise_if_unfit(ticket)

    @asynccontextmanager
    async def admit(self, ticket: RequestTicket) -> AsyncIterator[Attempt]:
        """Waits for a replica with room; gives its slot back, however the attempt ended. Raises OpenAIError."""
        sent = await self.wait(ticket)
        ticket.admitted = True
        try:
            yield Attempt(ticket, sent, self.router, self.now, on_first_token=self._let_suspects_go)
        finally:
            self.router.release(sent, self.now())
            self.pump()

    async def wait(self, ticket: RequestTicket) -> InFlightRequest:
        """Until it is this ticket's turn. Raises OpenAIError; whoever is cancelled leaves the line."""
        now = self.now()
        if not self.num_ready and _may_grow_for(ticket, self.model):
            self._on_urgent()
        if _is_hopeless(self.pool):
            raise self._refusal(QueueOutcome.NO_REPLICAS)
        self._raise_if_unfit(ticket)
        claims = self._claims_ahead_of(ticket, now)
        if not claims.is_everything and not self._stays(ticket, claims, now) and self.prompts.has_read(ticket):
            sent = self._route(ticket, now, claims)
            if sent is not None:
                self._foresee(ticket, sent.decision.predicted_ttft_seconds, now)
                return sent
        if not ticket.admitted and not _has_room(self.queue, ticket):
            raise self._refusal(QueueOutcome.QUEUE_FULL)
        return await self._wait_in_line(ticket, now)

    # What the fleet and the engines' streams call.

    def update(self, pool: Pool) -> None:
        """The fleet knows something new of this model."""
        before, self.pool = self.pool, pool
        routing, was = pool.model.routing, before.model.routing
        if (routing.policy, routing.prefix_hash) != (was.policy, was.prefix_hash):  # a policy may keep a state
            self.router.policy = make_policy(routing)
        if pool.model.engine != before.model.engine:
            self._outdated = frozenset(replica.uid for replica in (*before.replicas, *pool.replicas))
            self._knows_engines = False
        self._take_replicas()
        if _is_hopeless(self.pool):
            self._line.refuse_all(lambda: self._refusal(QueueOutcome.NO_REPLICAS))
        if _limits(pool.model) != _limits(before.model):
            self._line.set_timers()
        self.pump()

    def load_changed(self, uid: str, load: Load | None) -> None:
        """A replica of this pool has told its load; None = the last load is no longer valid."""
        self._hangs.told(uid, load)
        if load is not None:
            self.router.told(uid, load)
        if load is not None and self._warm_ups.awaits(uid):
            self._take_replicas()
        if self.datastore.drains(uid) != (uid in self._draining):
            self._note_readiness()
        if len(self.queue) and self._next_pump is None:
            self._next_pump = self._loop.call_at(max(self.now(), self._pumped_at + PUMP_GAP_SECONDS), self.pump)

    def remove(self) -> None:
        """The LLMDeployment is gone: waiting requests are refused, and retried requests too."""
        self._line.refuse_all(lambda: self._refusal(QueueOutcome.MODEL_REMOVED))
        self.pool = Pool(self.model, (), Outlook(False, "It was deleted."))
        self._take_replicas()
        self.pump()

    def pump(self) -> None:
        """Lets go whoever may. Called whenever room may have appeared."""
        self._pumped_at = now = self.now()
        if self._next_pump is not None:
            self._next_pump.cancel()
            self._next_pump = None
        if self._line.num_adapted:
            self._refuse_without_adapter()
        claims = Claims(self.router, now)
        for ticket in list(self.queue):
            if claims.is_everything:
                break
            if not self._stays(ticket, claims, now):
                self._let_go(ticket, claims, now)
        if self.queue.num_urgent and self.queue.num_spare and self.router.all_failing():
            first = next(ticket for ticket in self.queue if ticket.is_spare)
            self._let_go(first, Claims(self.router, now), now)  # lines of batches may probe before others' pauses end
        self._set_wake_up(now)

    # The line.

    def _let_suspects_go(self) -> None:
        """A request has had its first token: isolated suspects may have waited for that."""
        if self._line.num_suspects:
            self.pump()

    def _let_go(self, ticket: RequestTicket, claims: Claims, now: float) -> None:
        """Where there is room for it; else it has a claim."""
        adapter = ticket.request.adapter
        if not self.prompts.has_read(ticket):
            claims.wait(adapter, None)  # who reads it pumps again
            return
        if claims.leaves_nothing(adapter):
            return
        sent = self._route(ticket, now, claims)
        if sent is None:
            if (misfit := self.router.misfit(ticket.prompt, now)) is None:
                claims.wait(adapter, ticket.prompt)
            else:
                self._line.refuse(ticket, unfit(misfit))
            return
        awaited = self._line.take_out(ticket)
        if awaited.done():
            self.router.release(sent, now)  # its client is just going away
        else:
            awaited.set_result(sent)

    def _route(self, ticket: RequestTicket, now: float, claims: Claims) -> InFlightRequest | None:
        if ticket.is_spare and self.queue.num_urgent and not self.router.all_failing():
            return None
        return self.router.route(
            ticket.prompt,
            now,
            is_suspect=ticket.is_suspect,
            patient=now < ticket.patient_until,
            is_spare=ticket.is_spare,
            claimed=claims.replicas,
        )

    def _claims_ahead_of(self, ticket: RequestTicket, now: float) -> Claims:
        """Of those in line before it: there is no room for any of them."""
        claims = Claims(self.router, now)
        for each in self.queue:
            if each.order > ticket.order or claims.is_everything:
                break
            if not self._stays(each, claims, now):
                claims.wait(each.request.adapter, each.prompt if self.prompts.has_read(each) else None)
        return claims

    def _stays(self, ticket: RequestTicket, claims: Claims, now: float) -> bool:
        """Whether later tickets may pass this ticket without a claim. Isolated suspects hold up nobody; a suspect in
        line holds up all others."""
        if _lacks_adapter(self.router, ticket):
            return True
        if not ticket.is_suspect:
            return False
        patient = now < ticket.patient_until
        claims.is_crowded = claims.is_crowded or self.router.holds_back(
            ticket.prompt, now, patient=patient, claimed=claims.replicas
        )
        return claims.is_crowded

    async def _wait_in_line(self, ticket: RequestTicket, now: float) -> InFlightRequest:
        is_first = not (len(self.queue) if self.model.scale_for_batches else self.queue.num_urgent)
        if (
            self.num_ready
            and is_first
            and _may_grow_for(ticket, self.model)
            and now - self._line.emptied_at >= LULL_SECONDS
        ):
            self._on_urgent()
        awaited = self._line.enter(ticket, now)
        if ticket.foreseen_at is None:
            ttft = self.router.foreseen_ttft(ticket.prompt, self.queue.num_ahead(ticket), now)
            self._foresee(ticket, ttft, now)
        self.prompts.read_line()
        self._set_wake_up(now)
        try:
            return await awaited
        except asyncio.CancelledError:
            if awaited.done() and not awaited.cancelled() and awaited.exception() is None:
                self.router.release(awaited.result(), self.now())  # granted and cancelled in the same moment
            elif ticket.waiting_since is not None:
                self._line.take_out(ticket)
            self.pump()
            raise

    def _foresee(self, ticket: RequestTicket, ttft_seconds: float | None, now: float) -> None:
        """Called once, when the prompt has been read and the request goes or begins to wait, so the operator hears
        before the request's turn."""
        if ticket.foreseen_at is None:
            ticket.foresee(ttft_seconds, now)
            if ticket.request.stream and ttft_seconds is not None:
                self.counters.foreseen(ttft_seconds)

    def _deadline(self, ticket: RequestTicket) -> float:
        """Loop time at which the wait is over. Counted from the entry or from the pool's last change of state, so the
        whole maxQueueTime remains after a cold start; flapping replicas extend the wait by at most one cold start and
        one full queue."""
        assert ticket.waiting_since is not None
        if ticket.is_spare:
            return ticket.waiting_since + SPARE_WAIT_SECONDS
        max_queue_time, cold_start_timeout = _limits(self.model)
        limit = max_queue_time if self.num_ready else cold_start_timeout
        when = max(ticket.waiting_since, self._state_since) + limit
        return min(when, ticket.waiting_since + cold_start_timeout + max_queue_time)

    def _set_wake_up(self, now: float) -> None:
        """Pumps again when time alone may have made room."""
        if self._wake_up is not None:
            self._wake_up.cancel()
            self._wake_up = None
        when = self.router.next_change(now, with_spare=self.queue.num_spare > 0) if len(self.queue) else None
        if self._line.num_suspects:
            patience_ends = (ticket.patient_until for ticket in self.queue if ticket.patient_until > now)
            when = min((time for time in (when, *patience_ends) if time is not None), default=None)
        if when is not None:
            self._wake_up = self._loop.call_at(when, self.pump)

    # The state of the replicas.

    def _take_replicas(self) -> None:
        """Takes the replicas that are not warming up, and sets a timer for the end of the next warm-up."""
        now = self.now()
        replicas = self._warm_ups.warm(self.pool.replicas, now, lambda uid: self.datastore.load(uid, now) is not None)
        if self._warm_up is not None:
            self._warm_up.cancel()
        due = self._warm_ups.next_due(now)
        self._warm_up = None if due is None else self._loop.call_at(due, self.update, self.pool)
        self.router.set_replicas(replicas)
        self._hangs.keep(self.pool.replicas)
        if replicas:
            self._knows_engines |= any(replica.uid not in self._outdated for replica in replicas)
            self.prompts.set_replicas(replicas, self.pool.replicas)
        self._note_readiness()

    def _note_readiness(self) -> None:
        """The limit of waiting depends on whether a replica is ready, and since when."""
        self._draining = {replica.uid for replica in self.router.replicas if self.datastore.drains(replica.uid)}
        if bool(self.num_ready) != self._was_ready:
            self._was_ready = not self._was_ready
            self._state_since = self.now()
            self._line.set_timers()
            if not self._was_ready and self.num_waiting:
                self._on_urgent()  # who waits needs a replica now

    # Refusing.

    def _refuse_without_adapter(self) -> None:
        """Refuses tickets in line whose adapter will not be loaded."""
        for ticket in [each for each in self.queue if _lacks_adapter(self.router, each)]:
            if (error := without_adapter(self.pool, ticket.request.adapter or "")) is not None:
                self._line.refuse(ticket, error)

    def _raise_if_unfit(self, ticket: RequestTicket) -> None:
        """Raises OpenAIError for a request that no replica could ever serve. Without replicas, the limits of the last
        replicas decide, or else of the spec, so nothing is started in vain."""
        prompt = ticket.prompt
        misfit: PromptError | None = None
        if _lacks_adapter(self.router, ticket):
            if (error := without_adapter(self.pool, ticket.request.adapter or "")) is not None:
                raise error
        elif self.router.replicas:
            misfit = self.router.misfit(prompt, self.now())
        elif self._knows_engines and (digests := self.prompts.digests):
            errors = [prompt.too_long.get(digest) for digest in digests]
            misfit = errors[0] if None not in errors else None
        elif self.model.max_model_len is not None:
            misfit = prompt.least.excess(self.model.max_model_len)
        if misfit is not None:
            raise unfit(misfit)

    def _expire(self, ticket: RequestTicket) -> None:
        if _lacks_adapter(self.router, ticket) and (
            error := without_adapter(self.pool, ticket.request.adapter or "", is_late=True)
        ):
            self._line.refuse(ticket, error)
            self.pump()
            return
        if not self.num_ready:
            outcome = QueueOutcome.COLD_START_TIMEOUT
        elif self.router.all_failing():
            outcome = QueueOutcome.REPLICAS_FAILING
        else:
            outcome = QueueOutcome.QUEUE_TIMEOUT
        self._line.refuse(ticket, self._refusal(outcome))
        self.pump()

    def _refusal(self, outcome: QueueOutcome) -> OpenAIError:
        return refusal(outcome, self.pool, oldest_wait_seconds=self.queue.oldest_wait_seconds(self.now()))


def _limits(model: FleetModel) -> tuple[float, float]:
    return model.routing.max_queue_time, model.routing.cold_start_timeout


def _has_room(queue: PoolQueue[RequestTicket], ticket: RequestTicket) -> bool:
    """Whether a newcomer may enter the line; who sends lines of batches bounds their number."""
    return ticket.is_spare or queue.has_room(ticket.num_bytes)


def _may_grow_for(ticket: RequestTicket, model: FleetModel) -> bool:
    """Whether the fleet may grow for the request."""
    return not ticket.is_spare or model.scale_for_batches


def _is_hopeless(pool: Pool) -> bool:
    """Whether nothing is ready and nothing is going to be."""
    return not pool.replicas and not pool.outlook.starting


def _lacks_adapter(router: Router, ticket: RequestTicket) -> bool:
    """Whether all ready replicas have reported their adapters, without the ticket's adapter."""
    adapter = ticket.request.adapter
    return adapter is not None and router.lacks(adapter)
