"""What the gateway itself has learnt of its replicas' health: whom to leave alone for a while, and for how long.

Kubernetes' readiness arrives seconds late. Without this book a replica that refuses connections would look the least
loaded of all and attract every request.
"""

from dataclasses import dataclass
from enum import Enum


class Failure(Enum):
    """How a replica failed a request: (metric label, first pause, longest pause; seconds). Pauses double."""

    DRAINING = ("draining", 10.0, 10.0)
    """It is shutting down; readiness or its removal will follow within the pause."""
    DEAD = ("dead", 10.0, 10.0)
    """Its core had died before the request came: the process ends within seconds, and its successor has to load."""
    UNREACHABLE = ("unreachable", 0.5, 15.0)
    """No connection, or none in time."""
    DIED = ("died", 0.5, 15.0)
    """The connection broke, or made no sense, before the answer was complete."""
    UNAVAILABLE = ("unavailable", 0.5, 15.0)
    """It answered 503 for another reason."""
    TIMED_OUT = ("timed_out", 1.0, 30.0)
    """It took the request and then kept silent for too long."""

    def __init__(self, label: str, first_pause: float, longest_pause: float) -> None:
        self.label = label
        self.first_pause = first_pause
        self.longest_pause = longest_pause


@dataclass(slots=True)
class _HealthRecord:
    failure: Failure
    until: float
    num_failures: int
    probe: int | None = None
    """The dispatch that probes it; None while none does."""


class HealthBook:
    """Pauses per replica, by uid. After a pause one request at a time probes the replica, until one succeeds: until it
    is answered, or the engine says that it has it, as whole answers may take minutes."""

    def __init__(self) -> None:
        self._records: dict[str, _HealthRecord] = {}

    def available(self, uid: str, now: float) -> bool:
        """Whether the replica may be sent a request now."""
        record = self._records.get(uid)
        return record is None or (now >= record.until and record.probe is None)

    def failing(self, uid: str) -> bool:
        """Whether the last news of the replica was a failure."""
        return uid in self._records

    def sent(self, uid: str, dispatch: int) -> None:
        """A request with this number goes to the replica; if it had failed, this one is the probe."""
        record = self._records.get(uid)
        if record is not None:
            record.probe = dispatch

    def heard(self, uid: str, num_seen: int) -> None:
        """The replica's load includes so many of our dispatches: if the probe is one of them, it got there."""
        record = self._records.get(uid)
        if record is not None and record.probe is not None and record.probe <= num_seen:
            del self._records[uid]

    def succeeded(self, uid: str) -> None:
        """The replica answered: forget its failures."""
        self._records.pop(uid, None)

    def failed(self, uid: str, failure: Failure, now: float) -> None:
        """Starts or doubles the pause. Failures that arrive during a pause belong to the same event and count once."""
        record = self._records.get(uid)
        if record is not None and now < record.until:
            return
        num_failures = 1 if record is None else record.num_failures + 1
        pause = min(failure.first_pause * 2.0 ** min(num_failures - 1, 16), failure.longest_pause)
        self._records[uid] = _HealthRecord(failure, now + pause, num_failures)

    def ended(self, uid: str) -> None:
        """A request there is over: a probe that ended without a verdict may be repeated."""
        record = self._records.get(uid)
        if record is not None:
            record.probe = None

    def next_change(self, now: float) -> float | None:
        """When the next pause ends; None when nobody is paused."""
        return min((record.until for record in self._records.values() if record.until > now), default=None)

    def keep_only(self, uids: frozenset[str]) -> None:
        """Forgets replicas that left."""
        for uid in self._records.keys() - uids:
            del self._records[uid]
