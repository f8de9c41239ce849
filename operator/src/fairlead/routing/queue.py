"""A model's waiting line: by priority, then first come first served; bounded in requests and bytes. Behind all of them
stand spare tickets, of lines of batches, whose number others bound.

Who is requeued keeps his place.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

_order = attrgetter("order")


@dataclass(slots=True, eq=False)
class Ticket:
    """A request's place in line, kept through every attempt."""

    number: int
    """By when it came."""
    num_bytes: int
    """Size of the request's body, in memory while it waits."""
    priority: int = 0
    """The lower goes first, as in the engine; among equals, who came first."""
    is_spare: bool = False
    """Whether it takes spare capacity only, behind everybody else. It takes no room of those in line either."""
    waiting_since: float | None = None
    """When it entered the line, less earlier waiting; None = not in line."""
    waited_seconds: float = 0.0
    """Total time in line, up to the last exit."""
    admitted: bool = False
    """Whether it was let go before: then it is taken back however many wait."""
    foreseen_at: float | None = None
    """When the prediction was made, once the prompt had been read."""
    foreseen_ttft_seconds: float | None = None
    """Predicted seconds from then to the first token, the wait included; None = no prediction."""

    @property
    def order(self) -> tuple[bool, int, int]:
        """What the line is in order of."""
        return self.is_spare, self.priority, self.number

    def foresee(self, ttft_seconds: float | None, now: float) -> None:
        """Notes the first prediction; later ones would include past waiting."""
        if self.foreseen_at is None:
            self.foreseen_at, self.foreseen_ttft_seconds = now, ttft_seconds


AnyTicket = TypeVar("AnyTicket", bound=Ticket)


class PoolQueue(Generic[AnyTicket]):
    """The line. Its owner decides when the head may go; replicas and clients are unknown here."""

    def __init__(self, *, max_waiting: int, max_bytes: int) -> None:
        self.max_waiting = max_waiting
        self.max_bytes = max_bytes
        self._tickets: list[AnyTicket] = []
        self.num_bytes = 0
        """Of the bodies in line, without those of spare tickets."""
        self.num_spare = 0
        """Spare tickets in line."""
        self._issued = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[AnyTicket]:
        return iter(self._tickets)

    @property
    def num_urgent(self) -> int:
        """Tickets in line without the spare ones."""
        return len(self._tickets) - self.num_spare

    def next_number(self) -> int:
        """For a new ticket, behind all of its priority; it enters the line later."""
        self._issued += 1
        return self._issued

    def has_room(self, num_bytes: int) -> bool:
        """Whether a newcomer of this size may enter; an empty line takes any size."""
        if not self.num_urgent:
            return self.max_waiting > 0
        return self.num_urgent < self.max_waiting and self.num_bytes + num_bytes <= self.max_bytes

    def enter(self, ticket: AnyTicket, now: float) -> None:
        """Puts `ticket` at its place. Bounds are for newcomers (`has_room`)."""
        ticket.waiting_since = now - ticket.waited_seconds
        insort(self._tickets, ticket, key=_order)
        self._count(ticket, 1)

    def leave(self, ticket: Ticket, now: float) -> None:
        """Takes `ticket` out, if it is in line."""
        if ticket.waiting_since is None:
            return
        ticket.waited_seconds = max(0.0, now - ticket.waiting_since)
        ticket.waiting_since = None
        del self._tickets[bisect_left(self._tickets, ticket.order, key=_order)]
        self._count(ticket, -1)

    def _count(self, ticket: Ticket, sign: int) -> None:
        if ticket.is_spare:
            self.num_spare += sign
        else:
            self.num_bytes += sign * ticket.num_bytes

    def num_ahead(self, ticket: Ticket) -> int:
        """Tickets in line before `ticket`, which may be outside."""
        return bisect_left(self._tickets, ticket.order, key=_order)

    def oldest_wait_seconds(self, now: float, *, with_spare: bool = False) -> float:
        """How long who has waited longest has; 0 when nobody waits."""
        counted = self._tickets if with_spare else self._tickets[: self.num_urgent]
        since = min((each.waiting_since for each in counted if each.waiting_since is not None), default=now)
        return max(0.0, now - since)

    def check(self) -> None:
        """The line's invariants: in order of places, each ticket once, bytes add up."""
        order = [ticket.order for ticket in self._tickets]
        if order != sorted(set(order)):
            raise AssertionError(f"the line is out of order: {order}")
        if any(ticket.waiting_since is None for ticket in self._tickets):
            raise AssertionError("a ticket in line does not know since when it waits")
        if self.num_spare != sum(ticket.is_spare for ticket in self._tickets):
            raise AssertionError("the spare tickets in line do not add up")
        if self.num_bytes != sum(ticket.num_bytes for ticket in self._tickets if not ticket.is_spare):
            raise AssertionError("the bytes in line do not add up")
