"""A request's place in its model's line, and its turn at a replica: what the director and the proxy hold of admission.

They know the pool they belong to and pass on to its router what becomes of the attempt; they decide nothing.
"""

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from fairlead.gateway.openai.parse import InferenceRequest
from fairlead.gateway.prompts.reader import ReadPrompt
from fairlead.routing.deaths import Suspicion
from fairlead.routing.health import Failure
from fairlead.routing.in_flight import Slot
from fairlead.routing.queue import Ticket
from fairlead.routing.replica import Decision

if TYPE_CHECKING:
    from fairlead.gateway.dispatch.admission import ModelPool

Grant = tuple[Decision, Slot]
_PLURAL_FIELDS = ("n", "best_of")
"""With these, the tokens of an answer may have come side by side: their number does not say how long they took."""

PATIENCE_SECONDS = 3.0
"""How long a suspect waits at most for a replica where nobody else's prompt is being computed."""


@dataclass(slots=True, eq=False)
class Place:
    """A request's place in its model's line, kept through every attempt. Outside of the line nothing waits for it."""

    request: InferenceRequest
    ticket: Ticket
    prompt: ReadPrompt = field(default_factory=ReadPrompt)
    is_read: bool = False
    """Whether the prompt's length is known, if only as an estimate; which tokenizers have read it is another matter."""
    digests_read: set[str] = field(default_factory=set)
    """The tokenizers that have been tried on the prompt."""
    is_suspect: bool = False
    """Whether a replica may have died of this request: it waits to be kept apart from others."""
    patient_until: float = 0.0
    """A suspect waits so long for a replica on which no other prompt is being computed."""
    granted: "asyncio.Future[Grant] | None" = None
    """While in line: what it awaits."""
    timer: asyncio.TimerHandle | None = None
    """While in line: what ends its wait."""

    def forget(self) -> None:
        """No further attempt will be made: lets go of everything large, which a long stream would keep in memory."""
        self.request.fields = {}
        self.prompt = ReadPrompt()


class Turn:
    """One attempt's turn: entering waits for it, leaving gives the replica's slot back, however the attempt ended."""

    def __init__(self, model_pool: "ModelPool", place: Place) -> None:
        self._model_pool = model_pool
        self.place = place
        self.decision: Decision = None  # type: ignore[assignment]  # set by __aenter__
        self._slot: Slot = None  # type: ignore[assignment]
        self._is_plural = not place.request.fields.keys().isdisjoint(_PLURAL_FIELDS)

    async def __aenter__(self) -> "Turn":
        self.decision, self._slot = await self._model_pool.wait(self.place)
        self.place.ticket.admitted = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._model_pool.router.release(self._slot, self._model_pool.now())
        self._model_pool.pump()

    @property
    def prompt(self) -> ReadPrompt:
        """What the replica is to read."""
        return self.place.prompt

    def accepted(self) -> None:
        """The replica has begun to answer."""
        self._model_pool.router.accepted(self._slot, self._model_pool.now())

    def first_token(self, *, whole: bool = False) -> None:
        """The first token has come, so the prompt has been computed. `whole`: all tokens have come, so it is not known
        when the first one was there."""
        self._model_pool.router.first_token(self._slot, self._model_pool.now(), learn=not whole)
        self._model_pool.proven()

    def generated(self, num_tokens: int | None) -> None:
        """So many tokens came, if that is known."""
        if num_tokens is not None and not self._is_plural:
            self._model_pool.router.generated(self._slot, num_tokens)

    def begun(self) -> None:
        """The client has got a byte, so this attempt is the last."""
        self.place.forget()

    def failed(self, failure: Failure | None) -> Suspicion:
        """The replica failed the request; None: it is well, but full. Whether a death may have been its doing."""
        now = self._model_pool.now()
        if failure is None:
            self._model_pool.router.full(self._slot, now)
            return Suspicion.NONE
        suspicion = self._model_pool.router.failed(self._slot, failure, now)
        if suspicion is not Suspicion.NONE:
            self.place.is_suspect, self.place.patient_until = True, now + PATIENCE_SECONDS
        return suspicion
