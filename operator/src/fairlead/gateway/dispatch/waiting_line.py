"""Who waits for a replica of one model: the queue, and for each ticket in it what ends its wait."""

import asyncio
from collections.abc import Callable

from fairlead.gateway.dispatch.attempt import RequestTicket
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.openai.errors import OpenAIError
from fairlead.routing.in_flight import InFlightRequest
from fairlead.routing.queue import PoolQueue


class WaitingLine:
    """A ticket is in `queue` exactly while it has a future and a timer."""

    def __init__(
        self,
        settings: GatewaySettings,
        deadline: Callable[[RequestTicket], float],
        expire: Callable[[RequestTicket], object],
    ) -> None:
        """`deadline`: the loop time at which a ticket has waited too long. `expire`: called with a ticket in line whose
        deadline has come."""
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
