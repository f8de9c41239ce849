"""A gateway's own experience with replicas: room, health, and overhead of requests beyond the engine's steps.

- Room. An engine's published limits bound what one gateway sends; but several gateways share an engine, and long
  prompts fill its queue sooner than short ones. So a refusal ("engine-full") caps the replica at our requests of that
  moment, an accepted request raises the cap by one, and a pause without news allows one more: additive growth after an
  exact cut, much like TCP's congestion control. A load with an empty queue ends the cap.
- Health. Kubernetes' readiness arrives seconds late: a replica that refuses connections would look the least loaded of
  all and attract every request.
- Overhead: network, HTTP, tokenising, errors of the steps' model. Learnt as a fading median of `actual TTFT - modelled
  TTFT`, so that stragglers and old troubles are soon forgotten. Errors grow with the predicted time, so requests with
  longer predictions weigh less.

The router tells and asks; records are kept by the pod's uid.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from statistics import median
from typing import Generic, TypeVar

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.5
FORGET_AFTER_SECONDS = 5.0
"""A refusal is forgotten after so long without another."""
WINDOW = 31
"""Requests that are remembered per replica."""
NUM_ZEROS = 3
"""Imagined requests of typical length without overhead: the first real requests, perhaps with new connections, do not
decide alone."""
SHORTEST_SECONDS = 0.01
"""Shorter requests weigh no more."""
FADE_SECONDS = 60.0
"""Older samples do not count: an avoided replica gets a new chance."""
MAX_SECONDS = 1.0
"""Longer overheads are exceptions outside the model, which need not recur."""
SPARE_PROBE_SECONDS = 2.0
"""Between probes of a refusing replica by lines of batches: a refused line is repeated until the batch expires."""
_Kept = TypeVar("_Kept")


class _Book(Generic[_Kept]):
    """Records per replica, by uid."""

    def __init__(self) -> None:
        self._records: dict[str, _Kept] = {}

    def keep_only(self, uids: frozenset[str]) -> None:
        """Forgets replicas that left."""
        for uid in self._records.keys() - uids:
            del self._records[uid]


def _pause(first: float, longest: float, num_failures: int) -> float:
    """Seconds: doubled with each failure after the first."""
    return min(first * 2.0 ** min(num_failures - 1, 16), longest)


@dataclass(slots=True)
class _Cap:
    num_in_flight: int
    retry_at: float
    refused_at: float
    num_refusals: int


class CapacityBook(_Book[_Cap]):
    """Caps of replicas that refused a request."""

    def has_room(self, uid: str, num_in_flight: int, now: float) -> bool:
        """Whether one more request is likely to be taken, or may be tried."""
        cap = self._records.get(uid)
        if cap is None:
            return True
        if now - cap.refused_at >= FORGET_AFTER_SECONDS:
            del self._records[uid]
            return True
        return num_in_flight < cap.num_in_flight or now >= cap.retry_at

    def sent(self, uid: str, num_in_flight: int, now: float) -> None:
        """One more request goes to a replica with `num_in_flight`; above the cap it is this pause's trial."""
        cap = self._records.get(uid)
        if cap is not None and num_in_flight >= cap.num_in_flight:
            cap.num_in_flight = num_in_flight + 1
            cap.retry_at = now + _pause(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, cap.num_refusals)

    def accepted(self, uid: str) -> None:
        """A request was taken: one more may go."""
        cap = self._records.get(uid)
        if cap is not None:
            cap.num_in_flight += 1
            cap.num_refusals = 1

    def refused(self, uid: str, num_in_flight: int, now: float) -> None:
        """The replica was full with `num_in_flight` of our requests, the refused one not counted."""
        cap = self._records.get(uid)
        num_refusals = 1 if cap is None else cap.num_refusals + 1
        pause = _pause(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, num_refusals)
        self._records[uid] = _Cap(num_in_flight, now + pause, now, num_refusals)

    def queue_was_empty(self, uid: str, time: float) -> None:
        """Nobody waited in the engine at that time: a refusal from before says nothing any more."""
        cap = self._records.get(uid)
        if cap is not None and cap.refused_at < time:
            del self._records[uid]

    def next_change(self, now: float) -> float | None:
        """When the next pause ends; None when nobody is paused."""
        return min((cap.retry_at for cap in self._records.values() if cap.retry_at > now), default=None)


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

    @property
    def is_refusal(self) -> bool:
        """Whether the replica computed nothing for the request, and a probe is therefore free."""
        return self in (Failure.UNREACHABLE, Failure.UNAVAILABLE)


@dataclass(slots=True)
class _HealthRecord:
    failure: Failure
    until: float
    spare_until: float
    """The same for lines of batches."""
    num_failures: int
    probe: int | None = None
    """The dispatch that probes it; None while none does."""
    is_spare_probe: bool = False
    """Whether the probe is a line of a batch: its whole answer may take minutes, and urgent requests do not wait."""


class HealthBook(_Book[_HealthRecord]):
    """Pauses of replicas that failed. After a pause one request at a time probes the replica. A probe succeeds when
    answered, or when the engine's load includes the request, as whole answers may take minutes. Lines of batches probe
    earlier, and find a server that serves again however long the failures lasted."""

    def available(self, uid: str, now: float, *, is_spare: bool = False) -> bool:
        """Whether the replica may be sent a request now. `is_spare`: a line of a batch."""
        record = self._records.get(uid)
        if record is None:
            return True
        if is_spare:
            return record.probe is None and now >= record.spare_until
        return now >= record.until and (record.probe is None or record.is_spare_probe)

    def failing(self, uid: str) -> bool:
        """Whether the last news of the replica was a failure."""
        return uid in self._records

    def sent(self, uid: str, dispatch: int, *, is_spare: bool = False) -> None:
        """A request with this number goes to the replica; after a failure it is the probe."""
        record = self._records.get(uid)
        if record is not None:
            record.probe, record.is_spare_probe = dispatch, is_spare

    def heard(self, uid: str, num_seen: int) -> None:
        """The replica's load includes so many dispatches of ours, perhaps the probe."""
        record = self._records.get(uid)
        if record is not None and record.probe is not None and record.probe <= num_seen:
            del self._records[uid]

    def succeeded(self, uid: str) -> None:
        """The replica answered: forget its failures."""
        self._records.pop(uid, None)

    def failed(self, uid: str, failure: Failure, now: float) -> None:
        """Starts or doubles the pause. Failures that arrive during a pause belong to the same event and count once."""
        record = self._records.get(uid)
        spare_pause = SPARE_PROBE_SECONDS if failure.is_refusal else inf
        if record is not None and now < record.until:
            record.spare_until = min(record.until, now + spare_pause)
            return
        num_failures = 1 if record is None else record.num_failures + 1
        pause = _pause(failure.first_pause, failure.longest_pause, num_failures)
        self._records[uid] = _HealthRecord(failure, now + pause, now + min(pause, spare_pause), num_failures)

    def ended(self, uid: str) -> None:
        """A request has ended: if it was a probe without a verdict, another may follow."""
        record = self._records.get(uid)
        if record is not None:
            record.probe = None

    def next_change(self, now: float) -> float | None:
        """When the next pause ends, if only for lines of batches; None when nobody is paused."""
        ends = (end for record in self._records.values() for end in (record.spare_until, record.until))
        return min((end for end in ends if end > now), default=None)


@dataclass(slots=True)
class _OverheadRecord:
    samples: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """(time, seconds beside the modelled ones, modelled seconds) per request, oldest first."""
    seconds: float = 0.0
    fades_at: float = 0.0
    """When `seconds` has to be computed anew."""


class OverheadBook(_Book[_OverheadRecord]):
    """Seconds per replica: at least 0, at most MAX_SECONDS, 0 at the start."""

    def seconds(self, uid: str, now: float) -> float:
        """Expected overhead of a request to this replica."""
        record = self._records.get(uid)
        if record is None:
            return 0.0
        if now >= record.fades_at:
            self._recompute(uid, record, now)
        return record.seconds

    def observe(self, uid: str, actual: float, modelled: float, now: float) -> None:
        """A first token took `actual` seconds; the engine's steps should have taken `modelled`."""
        record = self._records.setdefault(uid, _OverheadRecord())
        record.samples.append((now, actual - modelled, modelled))
        self._recompute(uid, record, now)

    def _recompute(self, uid: str, record: _OverheadRecord, now: float) -> None:
        while record.samples and record.samples[0][0] <= now - FADE_SECONDS:
            record.samples.popleft()
        if not record.samples:
            del self._records[uid]
            record.seconds = 0.0
            return
        typical = median(modelled for _, _, modelled in record.samples)
        samples = [(0.0, typical)] * NUM_ZEROS + [(value, modelled) for _, value, modelled in record.samples]
        record.seconds = min(max(0.0, _weighted_median(samples)), MAX_SECONDS)
        record.fades_at = record.samples[0][0] + FADE_SECONDS


def _weighted_median(samples: Sequence[tuple[float, float]]) -> float:
    """Of (value, modelled seconds): the value with half of the weights below it; a weight is 1 / seconds."""
    weighted = sorted((value, 1.0 / max(seconds, SHORTEST_SECONDS)) for value, seconds in samples)
    rest = sum(weight for _, weight in weighted) / 2
    for value, weight in weighted:
        rest -= weight
        if rest <= 0.0:
            return value
    return weighted[-1][0]
