"""Admission: a model's waiting line joined to its router. Who may go, who waits, who is refused.

`ModelPool` is the gateway's side of one LLMDeployment. It holds a request only while no replica has room, or while
none is ready but one is starting. It does no network I/O: the director awaits it, the fleet updates it.
"""

import asyncio
from dataclasses import dataclass
from types import TracebackType

from fairlead.fleet.pool import Outlook, Pool, ServedModel
from fairlead.gateway.openai_errors import OpenAIError, refused
from fairlead.gateway.settings import GatewaySettings
from fairlead.routing.health import Failure
from fairlead.routing.in_flight import Slot
from fairlead.routing.outcomes import QueueOutcome
from fairlead.routing.policies import make_policy
from fairlead.routing.queue import PoolQueue, Ticket, deadline
from fairlead.routing.replica import Decision
from fairlead.routing.router import Router

Grant = tuple[Decision, Slot]

COLD_RETRY_AFTER_SECONDS = 10.0
"""What a client is told to wait when nothing is ready: a model takes a while to load."""
LONGEST_RETRY_AFTER_SECONDS = 30.0


class Turn:
    """One attempt's turn: entering waits for it, leaving gives the replica's slot back, however the attempt ended."""

    def __init__(self, model_pool: "ModelPool", ticket: Ticket) -> None:
        self._model_pool = model_pool
        self.ticket = ticket
        self.decision: Decision = None  # type: ignore[assignment]  # set by __aenter__
        self._slot: Slot = None  # type: ignore[assignment]

    async def __aenter__(self) -> "Turn":
        self.decision, self._slot = await self._model_pool.wait(self.ticket)
        self.ticket.admitted = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._model_pool.router.release(self._slot)
        self._model_pool.pump()

    def accepted(self) -> None:
        """The replica has begun to answer."""
        self._model_pool.router.accepted(self._slot)

    def failed(self, failure: Failure | None) -> None:
        """The replica failed the request; None: it is well, but full."""
        now = self._model_pool.now()
        if failure is None:
            self._model_pool.router.full(self._slot, now)
        else:
            self._model_pool.router.failed(self._slot, failure, now)


@dataclass(slots=True)
class _Waiting:
    """Whoever is in line: the future it awaits, and the timer that ends the wait."""

    granted: asyncio.Future[Grant]
    timer: asyncio.TimerHandle


class ModelPool:
    """One model's queue, books and policy. They outlive every change of its replicas and of its spec."""

    def __init__(self, pool: Pool, settings: GatewaySettings) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self.pool = pool
        self.queue = PoolQueue(max_waiting=settings.max_queue, max_bytes=settings.max_queue_bytes)
        self.router = Router(make_policy(pool.model.policy))
        self.router.set_replicas(pool.replicas)
        self._waiting: dict[int, _Waiting] = {}
        """By ticket number, for every ticket in line."""
        self._wake_up: asyncio.TimerHandle | None = None
        self._state_since = self.now()

    @property
    def model(self) -> ServedModel:
        """What is served, by the newest word."""
        return self.pool.model

    def ticket(self, num_bytes: int) -> Ticket:
        """A place in line for a request of this size, behind all that have one."""
        return self.queue.issue(num_bytes)

    def admit(self, ticket: Ticket) -> Turn:
        """`async with` it: waits for a replica with room. Raises OpenAIError."""
        return Turn(self, ticket)

    def update(self, pool: Pool) -> None:
        """The fleet knows something new of this model."""
        before, self.pool = self.pool, pool
        if pool.model.policy != before.model.policy:
            self.router.policy = make_policy(pool.model.policy)
        self.router.set_replicas(pool.replicas)
        if bool(pool.replicas) != bool(before.replicas):
            self._state_since = self.now()
        if not pool.replicas and not pool.outlook.starting:
            self._refuse_all(QueueOutcome.NO_REPLICAS)
        for ticket in self.queue:  # other limits may hold now
            waiting = self._waiting[ticket.number]
            waiting.timer.cancel()
            waiting.timer = self._timer(ticket)
        self.pump()

    def remove(self) -> None:
        """The LLMDeployment is gone: nobody waits any longer, and a request that comes back finds nothing."""
        self._refuse_all(QueueOutcome.MODEL_REMOVED)
        self.pool = Pool(self.model, (), Outlook(False, "It was deleted."))
        self.router.set_replicas(())

    async def wait(self, ticket: Ticket) -> Grant:
        """Until it is this ticket's turn. Raises OpenAIError; whoever is cancelled leaves the line."""
        now = self.now()
        if not self.pool.replicas and not self.pool.outlook.starting:
            raise self._refusal(QueueOutcome.NO_REPLICAS)
        head = self.queue.head
        if (head is None or ticket.number < head.number) and (grant := self.router.route(now)) is not None:
            return grant
        if not ticket.admitted and not self.queue.has_room(ticket.num_bytes):
            raise self._refusal(QueueOutcome.QUEUE_FULL)
        return await self._wait_in_line(ticket, now)

    async def _wait_in_line(self, ticket: Ticket, now: float) -> Grant:
        granted: asyncio.Future[Grant] = self._loop.create_future()
        self.queue.enter(ticket, now)
        self._waiting[ticket.number] = _Waiting(granted, self._timer(ticket))
        self._set_wake_up(now)
        try:
            return await granted
        except asyncio.CancelledError:
            if ticket.number in self._waiting:
                self._take_out(ticket)
            elif granted.done() and not granted.cancelled() and granted.exception() is None:
                self.router.release(granted.result()[1])  # granted and cancelled in the same moment
            self.pump()
            raise

    def pump(self) -> None:
        """Lets go whoever may, first come first served. Called whenever room may have appeared."""
        now = self.now()
        while (ticket := self.queue.head) is not None:
            grant = self.router.route(now)
            if grant is None:
                break
            granted = self._take_out(ticket)
            if granted.done():
                self.router.release(grant[1])  # its client is just going away
            else:
                granted.set_result(grant)
        self._set_wake_up(now)

    def _take_out(self, ticket: Ticket) -> "asyncio.Future[Grant]":
        """Out of the line; the future that whoever has this ticket awaits."""
        self.queue.leave(ticket, self.now())
        waiting = self._waiting.pop(ticket.number)
        waiting.timer.cancel()
        return waiting.granted

    def _timer(self, ticket: Ticket) -> asyncio.TimerHandle:
        """Ends the ticket's wait when its deadline has come, as the pool is now."""
        limit = self.model.max_queue_time if self.pool.replicas else self.model.cold_start_timeout
        when = deadline(ticket, state_since=self._state_since, limit_seconds=limit)
        return self._loop.call_at(when, self._expire, ticket)

    def _set_wake_up(self, now: float) -> None:
        """Pumps again when time alone may have made room."""
        if self._wake_up is not None:
            self._wake_up.cancel()
            self._wake_up = None
        when = self.router.next_change(now) if len(self.queue) else None
        if when is not None:
            self._wake_up = self._loop.call_at(when, self.pump)

    def _expire(self, ticket: Ticket) -> None:
        if not self.pool.replicas:
            outcome = QueueOutcome.COLD_START_TIMEOUT
        elif self.router.all_failing():
            outcome = QueueOutcome.REPLICAS_FAILING
        else:
            outcome = QueueOutcome.QUEUE_TIMEOUT
        self._refuse(ticket, outcome)

    def _refuse_all(self, outcome: QueueOutcome) -> None:
        for ticket in list(self.queue):
            self._refuse(ticket, outcome)

    def _refuse(self, ticket: Ticket, outcome: QueueOutcome) -> None:
        refusal = self._refusal(outcome)
        granted = self._take_out(ticket)
        if not granted.done():
            granted.set_exception(refusal)

    def _refusal(self, outcome: QueueOutcome) -> OpenAIError:
        model, outlook = self.model, self.pool.outlook
        name = model.served_name
        retry_after = min(max(1.0, self.queue.oldest_wait_seconds(self.now())), LONGEST_RETRY_AFTER_SECONDS)
        if outcome is QueueOutcome.QUEUE_FULL:
            message = f"Too many requests wait for the model {name!r} already; try again later."
        elif outcome is QueueOutcome.QUEUE_TIMEOUT:
            message = (
                f"Every replica of the model {name!r} was full for {model.max_queue_time:g} seconds; try again later."
            )
        elif outcome is QueueOutcome.REPLICAS_FAILING:
            message = f"Every replica of the model {name!r} fails at the moment."
        elif outcome is QueueOutcome.COLD_START_TIMEOUT:
            retry_after = COLD_RETRY_AFTER_SECONDS
            limit = f"{model.cold_start_timeout:g} seconds"
            message = f"No replica of the model {name!r} became ready within {limit}. {outlook.message}"
        elif outcome is QueueOutcome.NO_REPLICAS:
            retry_after = COLD_RETRY_AFTER_SECONDS
            message = f"Nothing serves the model {name!r}. {outlook.message}"
        else:
            return refused(outcome, f"The model {name!r} was removed.", retry_after=None)
        return refused(outcome, message.rstrip(), retry_after=retry_after)
