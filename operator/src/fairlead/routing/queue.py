"""A model's waiting line: first come first served, bounded in requests and bytes; who is requeued keeps his place."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

_number = attrgetter("number")


@dataclass(slots=True, eq=False)
class Ticket:
    """A request's place in line. It keeps its number, hence its place, through every attempt."""

    number: int
    num_bytes: int
    """Size of the request's body, held in memory while it waits."""
    waiting_since: float | None = None
    """When it entered the line, moved back by what it waited before; None while it is not in line."""
    waited_seconds: float = 0.0
    """Time spent in line in all, up to the last time it left."""
    admitted: bool = False
    """Whether it was let go before: then it is taken back however many wait."""
    foreseen_at: float | None = None
    """When it was foreseen what becomes of it: as soon as its prompt had been read, and once."""
    foreseen_ttft_seconds: float | None = None
    """From then to its first token, the wait included; None where nobody could tell."""

    def foresee(self, ttft_seconds: float | None, now: float) -> None:
        """Notes what is foreseen, the first time: what has been waited since is known, and no forecast."""
        if self.foreseen_at is None:
            self.foreseen_at, self.foreseen_ttft_seconds = now, ttft_seconds


class PoolQueue:
    """The line. It knows neither replicas nor clients: whoever owns it decides when the head may go."""

    def __init__(self, *, max_waiting: int, max_bytes: int) -> None:
        self.max_waiting = max_waiting
        self.max_bytes = max_bytes
        self._tickets: list[Ticket] = []
        self._num_bytes = 0
        self._issued = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    @property
    def num_bytes(self) -> int:
        """Bytes of the bodies in line."""
        return self._num_bytes

    @property
    def head(self) -> Ticket | None:
        """Who is next."""
        return self._tickets[0] if self._tickets else None

    def issue(self, num_bytes: int) -> Ticket:
        """A new ticket, behind all issued before; it is not in line until it enters."""
        self._issued += 1
        return Ticket(self._issued, num_bytes)

    def has_room(self, num_bytes: int) -> bool:
        """Whether a newcomer of this size may enter; an empty line takes any size."""
        if not self._tickets:
            return self.max_waiting > 0
        return len(self._tickets) < self.max_waiting and self._num_bytes + num_bytes <= self.max_bytes

    def enter(self, ticket: Ticket, now: float) -> None:
        """Puts `ticket` at its place by number. Bounds are for newcomers (`has_room`)."""
        ticket.waiting_since = now - ticket.waited_seconds
        insort(self._tickets, ticket, key=_number)
        self._num_bytes += ticket.num_bytes

    def leave(self, ticket: Ticket, now: float) -> None:
        """Takes `ticket` out, wherever it stands; one that is not in line is left alone."""
        if ticket.waiting_since is None:
            return
        ticket.waited_seconds = max(0.0, now - ticket.waiting_since)
        ticket.waiting_since = None
        del self._tickets[bisect_left(self._tickets, ticket.number, key=_number)]
        self._num_bytes -= ticket.num_bytes

    def num_ahead(self, ticket: Ticket) -> int:
        """How many wait before `ticket`, whether it is in line or not."""
        return bisect_left(self._tickets, ticket.number, key=_number)

    def oldest_wait_seconds(self, now: float) -> float:
        """How long the head has waited; 0 when nobody waits."""
        head = self.head
        return 0.0 if head is None or head.waiting_since is None else max(0.0, now - head.waiting_since)

    def check(self) -> None:
        """The line's invariants: in order of numbers, each ticket once, bytes add up."""
        numbers = [ticket.number for ticket in self._tickets]
        if numbers != sorted(set(numbers)):
            raise AssertionError(f"the line is out of order: {numbers}")
        if any(ticket.waiting_since is None for ticket in self._tickets):
            raise AssertionError("a ticket in line does not know since when it waits")
        if self._num_bytes != sum(ticket.num_bytes for ticket in self._tickets):
            raise AssertionError("the bytes in line do not add up")


def deadline(ticket: Ticket, *, state_since: float, limit_seconds: float) -> float:
    """When `ticket`'s wait ends unanswered: the limit counts from its entry, or from the pool's last change of state.

    So a request held through a cold start gets the whole maxQueueTime once a replica is there, and one whose last
    replica vanished gets the whole coldStartTimeout.
    """
    since = state_since if ticket.waiting_since is None else max(ticket.waiting_since, state_since)
    return since + limit_seconds
