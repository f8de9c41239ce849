"""One request's ticket: its model's line, and the request's attempts at replicas.

`ModelPool` lets tickets go; director and proxy hold the `Attempt`, which reports the outcome to the router.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.openai.errors import OpenAIError
from fairlead.gateway.openai.parse import InferenceRequest
from fairlead.gateway.prompts.reader import ReadPrompt
from fairlead.routing.books import Failure
from fairlead.routing.in_flight import InFlightRequest
from fairlead.routing.prompt import Prompt
from fairlead.routing.queue import PoolQueue, Ticket
from fairlead.routing.router import Router
from fairlead.routing.suspects import Suspicion

_PLURAL_FIELDS = ("n", "best_of")
"""With these fields tokens come side by side, and their number does not measure time."""

PATIENCE_SECONDS = 3.0
"""How long a suspect waits at most for a replica where nobody else's prompt is being computed."""


@dataclass(slots=True, eq=False, kw_only=True)
class RequestTicket(Ticket):
    """A request's ticket, kept through every attempt. Outside of the line nothing waits for it."""

    request: InferenceRequest
    prompt: ReadPrompt = field(default_factory=ReadPrompt)
    is_read: bool = False
    """Whether the prompt's length is known, if only as an estimate; which tokenizers have read it is another matter."""
    digests_read: set[str] = field(default_factory=set)
    """Digests of the tokenizers that have been tried on the prompt."""
    is_suspect: bool = False
    """Whether a replica may have died of this request: it is isolated from other requests."""
    patient_until: float = 0.0
    """Until then a suspect waits for a replica without other prompts under computation."""
    sent: "asyncio.Future[InFlightRequest] | None" = None
    """While in line: what it awaits."""
    timer: asyncio.TimerHandle | None = None
    """While in line: what ends its wait."""

    def suspect(self, now: float) -> None:
        """A replica may have died of it."""
        self.is_suspect, self.patient_until = True, now + PATIENCE_SECONDS


@dataclass(eq=False)
class Attempt:
    """One attempt at a replica, for as long as `ModelPool.admit` keeps a slot."""

    ticket: RequestTicket
    sent: InFlightRequest
    router: Router
    now: Callable[[], float]
    on_first_token: Callable[[], object]

    def __post_init__(self) -> None:
        self.decision = self.sent.decision
        """Which replica, and why."""
        self._is_plural = not self.ticket.request.fields.keys().isdisjoint(_PLURAL_FIELDS)

    def accepted(self) -> None:
        """The replica has begun to answer."""
        self.router.accepted(self.sent)

    def first_token(self, *, whole: bool = False) -> None:
        """The first token came: the prompt is computed. `whole`: all tokens came together, so the time of the first is
        unknown."""
        self.router.first_token(self.sent, self.now(), learn=not whole)
        self.on_first_token()

    def generated(self, num_tokens: int | None) -> None:
        """So many tokens came, if that is known."""
        if num_tokens is not None and not self._is_plural:
            self.router.generated(self.sent, num_tokens)

    def begun(self) -> None:
        """The client gets a byte, so no attempt follows: frees memory that a long stream would hold."""
        self.ticket.request.fields, self.ticket.request.form = {}, None
        self.ticket.prompt = ReadPrompt()

    def failed(self, failure: Failure | None) -> Suspicion:
        """The replica failed the request; None: it is well, but full. Whether a death may have been its doing."""
        now = self.now()
        if failure is None:
            self.router.full(self.sent, now)
            return Suspicion.NONE
        suspicion = self.router.failed(self.sent, failure, now)
        if suspicion is not Suspicion.NONE:
            self.ticket.suspect(now)
        return suspicion


class WaitingLine:
    """A ticket is in `queue` exactly while it has a future and a timer."""

    def __init__(
        self,
        settings: GatewaySettings,
        deadline: Callable[[RequestTicket], float],
        expire: Callable[[RequestTicket], object],
    ) -> None:
        """`deadline`: the loop time at which a ticket has waited too long. `expire`: called then, for a ticket in
        line."""
        self.queue: PoolQueue[RequestTicket] = PoolQueue(
            max_waiting=settings.max_queue, max_bytes=settings.max_queue_bytes
        )
        self.num_suspects = 0
        """Tickets in line that a replica may have died of."""
        self.num_adapted = 0
        """Tickets in line that ask for an adapter."""
        self.emptied_at = float("-inf")
        """When a ticket left the line last, in loop time."""
        self._loop = asyncio.get_running_loop()
        self._deadline = deadline
        self._expire = expire

    def enter(self, ticket: RequestTicket, now: float) -> "asyncio.Future[InFlightRequest]":
        """The future that the ticket's owner awaits."""
        ticket.sent = self._loop.create_future()
        self.queue.enter(ticket, now)
        self.num_suspects += ticket.is_suspect
        self.num_adapted += ticket.request.adapter is not None
        self._set_timer(ticket)
        return ticket.sent

    def take_out(self, ticket: RequestTicket) -> "asyncio.Future[InFlightRequest]":
        """The future that is awaited; the ticket is no longer in line."""
        awaited = ticket.sent
        assert awaited is not None and ticket.timer is not None
        self.emptied_at = self._loop.time()
        self.queue.leave(ticket, self.emptied_at)
        self.num_suspects -= ticket.is_suspect
        self.num_adapted -= ticket.request.adapter is not None
        ticket.timer.cancel()
        ticket.sent = ticket.timer = None
        return awaited

    def refuse(self, ticket: RequestTicket, error: OpenAIError) -> None:
        """Takes the ticket out; its owner gets the error."""
        awaited = self.take_out(ticket)
        if not awaited.done():
            awaited.set_exception(error)

    def refuse_all(self, make_error: Callable[[], OpenAIError]) -> None:
        """Takes everybody out, the first one first; each gets an error of its own."""
        for ticket in list(self.queue):
            self.refuse(ticket, make_error())

    def set_timers(self) -> None:
        """Deadlines have changed."""
        for ticket in self.queue:
            assert ticket.timer is not None
            ticket.timer.cancel()
            self._set_timer(ticket)

    def _set_timer(self, ticket: RequestTicket) -> None:
        ticket.timer = self._loop.call_at(self._deadline(ticket), self._expire, ticket)


MOST_FITTED = 16
"""Waiting prompts compared with all replicas in one look; later prompts claim every replica with their adapter. Bounds
the time of a look at a long line in a fleet of unequal context lengths."""


class Claims:
    """Replicas claimed by waiting requests: each claims all replicas that may serve its prompt, even full.

    Freed room goes to the first usable ticket in line, so nobody starves. Requests for particular replicas (with an
    adapter, or with long contexts) hold nobody else up.
    """

    def __init__(self, router: Router, now: float) -> None:
        self._router = router
        self._now = now
        self._all = router.holders(None)
        self._num_fitted = 0
        self.replicas: set[str] = set()
        """By uid."""
        self.is_crowded = False
        """A suspect is kept apart from others: all other suspects behind it are, too."""

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left for whoever stands behind."""
        return len(self.replicas) >= len(self._all)

    def leaves_nothing(self, adapter: str | None) -> bool:
        """For a request that asks for this adapter."""
        return self._router.holders(adapter) <= self.replicas

    def wait(self, adapter: str | None, prompt: Prompt | None) -> None:
        """A request waits. `prompt`: None = unread: every replica with the adapter is claimed."""
        if self.leaves_nothing(adapter):
            return
        if prompt is None or self._num_fitted == MOST_FITTED:
            self.replicas |= self._router.holders(adapter)
            return
        self._num_fitted += 1
        self.replicas |= self._router.usable(prompt, self._now)
