"""One model's router: the replicas, what is known of each, and the policy, joined into `route`. Still pure."""

from collections.abc import Sequence

from fairlead.routing.capacity import CapacityBook
from fairlead.routing.health import Failure, HealthBook
from fairlead.routing.in_flight import InFlightBook, Slot
from fairlead.routing.policies import Policy
from fairlead.routing.replica import Candidate, Decision, Replica


class Router:
    """Decides among replicas and keeps the books that decisions rest on. It knows no queue and no clock."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.in_flight = InFlightBook()
        self.health = HealthBook()
        self.capacity = CapacityBook()
        self.replicas: tuple[Replica, ...] = ()

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        """Replaces the ready replicas. Books about others are closed; what they have in flight stays counted."""
        self.replicas = tuple(replicas)
        uids = frozenset(replica.uid for replica in replicas)
        self.health.keep_only(uids)
        self.capacity.keep_only(uids)

    def candidates(self, now: float) -> list[Candidate]:
        """The replicas that have room for one more request now."""
        counted = ((replica, self.in_flight.count(replica.uid)) for replica in self.replicas)
        return [Candidate(replica, num) for replica, num in counted if self._has_room(replica, num, now)]

    def route(self, now: float) -> tuple[Decision, Slot] | None:
        """A decision and its slot, which the caller releases when the attempt is over; None when nobody has room."""
        candidates = self.candidates(now)
        if not candidates:
            return None
        decision = self.policy.pick(candidates, now)
        uid = decision.replica.uid
        self.capacity.sent(uid, self.in_flight.count(uid), now)
        self.health.sent(uid)
        return decision, self.in_flight.take(uid)

    def accepted(self, slot: Slot) -> None:
        """The replica has begun to answer the request of this slot."""
        self.health.succeeded(slot.uid)
        self.capacity.accepted(slot.uid)

    def failed(self, slot: Slot, failure: Failure, now: float) -> None:
        """The replica failed the request of this slot."""
        self.health.failed(slot.uid, failure, now)

    def full(self, slot: Slot, now: float) -> None:
        """The replica refused the request of this slot because its queue is full: it answered, so it is healthy."""
        self.health.succeeded(slot.uid)
        self.capacity.refused(slot.uid, self.in_flight.count(slot.uid) - (not slot.released), now)

    def release(self, slot: Slot) -> None:
        """The attempt of this slot is over, however it ended."""
        if not slot.released:
            slot.release()
            self.health.ended(slot.uid)

    def all_failing(self) -> bool:
        """Whether there are replicas and the last news of every one was a failure."""
        return bool(self.replicas) and all(self.health.failing(replica.uid) for replica in self.replicas)

    def next_change(self, now: float) -> float | None:
        """When time alone may give a replica room again; None when only an event can."""
        times = (self.health.next_change(now), self.capacity.next_change(now))
        return min((time for time in times if time is not None), default=None)

    def _has_room(self, replica: Replica, num_in_flight: int, now: float) -> bool:
        if replica.limits is not None and num_in_flight >= replica.limits.capacity:
            return False
        uid = replica.uid
        return self.health.available(uid, now) and self.capacity.has_room(uid, num_in_flight, now)
