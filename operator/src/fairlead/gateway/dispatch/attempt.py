"""A request's ticket in its model's line, and one attempt at a replica: what the director and the proxy hold of
admission. They pass on to the router what becomes of the attempt; they decide nothing."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from fairlead.gateway.openai.parse import InferenceRequest
from fairlead.gateway.prompts.reader import ReadPrompt
from fairlead.routing.health import Failure
from fairlead.routing.in_flight import InFlightRequest
from fairlead.routing.queue import Ticket
from fairlead.routing.router import Router
from fairlead.routing.suspects import Suspicion

_PLURAL_FIELDS = ("n", "best_of")
"""With these, the tokens of an answer may have come side by side: their number does not say how long they took."""

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
    """The tokenizers that have been tried on the prompt."""
    is_suspect: bool = False
    """Whether a replica may have died of this request: it waits to be kept apart from others."""
    patient_until: float = 0.0
    """A suspect waits so long for a replica on which no other prompt is being computed."""
    sent: "asyncio.Future[InFlightRequest] | None" = None
    """While in line: what it awaits."""
    timer: asyncio.TimerHandle | None = None
    """While in line: what ends its wait."""


class Attempt:
    """One attempt at a replica, for as long as `ModelPool.admit` keeps a slot of it."""

    def __init__(
        self,
        ticket: RequestTicket,
        sent: InFlightRequest,
        router: Router,
        now: Callable[[], float],
        on_first_token: Callable[[], object],
    ) -> None:
        self.ticket = ticket
        self.decision = sent.decision
        """Which replica, and why."""
        self._sent = sent
        self._router = router
        self._now = now
        self._on_first_token = on_first_token
        self._is_plural = not ticket.request.fields.keys().isdisjoint(_PLURAL_FIELDS)

    def accepted(self) -> None:
        """The replica has begun to answer."""
        self._router.accepted(self._sent)

    def first_token(self, *, whole: bool = False) -> None:
        """The first token has come, so the prompt has been computed. `whole`: all tokens have come, so it is not known
        when the first one was there."""
        self._router.first_token(self._sent, self._now(), learn=not whole)
        self._on_first_token()

    def generated(self, num_tokens: int | None) -> None:
        """So many tokens came, if that is known."""
        if num_tokens is not None and not self._is_plural:
            self._router.generated(self._sent, num_tokens)

    def begun(self) -> None:
        """The client gets a byte, so this attempt is the last: lets go of everything large, which a long stream would
        keep in memory."""
        self.ticket.request.fields = {}
        self.ticket.prompt = ReadPrompt()

    def failed(self, failure: Failure | None) -> Suspicion:
        """The replica failed the request; None: it is well, but full. Whether a death may have been its doing."""
        now = self._now()
        if failure is None:
            self._router.full(self._sent, now)
            return Suspicion.NONE
        suspicion = self._router.failed(self._sent, failure, now)
        if suspicion is not Suspicion.NONE:
            self.ticket.is_suspect, self.ticket.patient_until = True, now + PATIENCE_SECONDS
        return suspicion
