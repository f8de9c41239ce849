"""Suspects: requests that a replica may have died of, isolated on another replica. Pure.

When a process dies, the connections of its requests break one after another: one death. Alone among requests with
computed prompts, a suspect is proven guilty by the next death, which harms no request still in prefill. Called by the
router.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from fairlead.routing.in_flight import TRIAL_SECONDS, InFlightBook, InFlightRequest
from fairlead.routing.replica import Candidate

SAME_DEATH_SECONDS = 1.0
"""Longest time between broken connections of one death."""


class Suspicion(Enum):
    """Whether a request may have killed its replica."""

    NONE = "none"
    """The request had been computed without harm, unlike others."""
    SHARED = "shared"
    """Several requests are suspected."""
    SOLE = "sole"
    """Nobody else is known that could have."""


@dataclass(frozen=True, slots=True)
class _Death:
    time: float
    present: frozenset[int]
    """Dispatch numbers of all that were there."""
    suspects: frozenset[int]
    has_others: bool
    """Whether other gateways had unproven requests there."""


@dataclass(slots=True)
class _Others:
    """Other gateways' requests on a replica, by its load lines."""

    num_seen: int
    num_computed: int
    """Requests seen by the last line that had nothing left to compute."""
    since: float
    """When `num_seen` grew last."""


class Suspects:
    """Suspects of one model. Other requests avoid replicas with a suspect, unless all other healthy replicas are
    gone."""

    def __init__(self, book: InFlightBook) -> None:
        self._book = book
        self._deaths: dict[str, _Death] = {}
        """The last death of each replica, by uid."""
        self._others: dict[str, _Others] = {}
        """By the replica's uid."""
        self._reserved = ""
        """Uid of the replica that is being emptied of unproven requests for a suspect."""
        self._reserved_until = 0.0

    def told(self, uid: str, num_others: int, now: float, *, are_computed: bool) -> None:
        """The replica counts so many requests of other gateways, and each may kill the replica. `are_computed`: all
        prompts are."""
        others = self._others.get(uid)
        if others is None or num_others < others.num_seen:  # it is new, or began to count anew
            others = self._others[uid] = _Others(0, 0, now)
        if num_others > others.num_seen:
            others.num_seen, others.since = num_others, now
        if are_computed:
            others.num_computed = num_others

    def died(self, sent: InFlightRequest, now: float) -> Suspicion:
        """The replica died under this request, still in flight."""
        uid, death = sent.uid, self._deaths.get(sent.uid)
        if death is None or sent.dispatch not in death.present or now - death.time > SAME_DEATH_SECONDS:
            requests = list(self._book.requests(uid))
            everybody = frozenset(each.dispatch for each in requests)
            unproven = frozenset(each.dispatch for each in requests if self._book.is_unproven(each, now))
            others = self._others.get(uid)
            has_others = (
                others is not None and others.num_computed < others.num_seen and now < others.since + TRIAL_SECONDS
            )
            death = self._deaths[uid] = _Death(now, everybody, unproven or everybody, has_others)
        if sent.dispatch not in death.suspects:
            return Suspicion.NONE
        return Suspicion.SHARED if len(death.suspects) > 1 or death.has_others else Suspicion.SOLE

    def for_others(self, candidates: Sequence[Candidate], well: Collection[str], now: float) -> Sequence[Candidate]:
        """Candidates for a request without suspicion. `well`: replicas that may be sent requests, even full."""
        kept = {uid for uid in well if self._is_reserved(uid, now) or self._book.has_trial(uid, now)}
        if not kept or len(kept) == len(well):
            return candidates
        return [each for each in candidates if each.replica.uid not in kept]

    def for_suspect(
        self, candidates: Sequence[Candidate], well: Collection[str], now: float, *, patient: bool
    ) -> Sequence[Candidate]:
        """Candidates for a suspect: no replica with another suspect, and not the last one without. `patient`: no
        replica with unproven requests either; one is reserved, and soon has none."""
        on_trial = {uid for uid in well if self._book.has_trial(uid, now)}
        if len(on_trial) >= max(1, len(well) - 1):
            return []
        free = [each for each in candidates if each.replica.uid not in on_trial]
        quiet = [each for each in free if not self._book.has_unproven(each.replica.uid, now)]
        if patient and free and not quiet:
            uids = [each.replica.uid for each in free]
            if self._reserved not in uids or not self._is_reserved(self._reserved, now):
                self._reserved = uids[0]
            self._reserved_until = now + TRIAL_SECONDS
            return []
        self._reserved = ""
        return quiet or free

    def next_change(self, now: float) -> float | None:
        """When time alone ends a trial or frees the reserved replica; None = neither."""
        kept_free = self._book.requests(self._reserved) if self._is_reserved(self._reserved, now) else ()
        requests = [*self._book.suspects(), *kept_free]
        ends = (each.dispatched_at + TRIAL_SECONDS for each in requests if self._book.is_unproven(each, now))
        return min(ends, default=None)

    def keep_only(self, uids: frozenset[str]) -> None:
        """Forgets replicas that left."""
        for uid in (self._deaths.keys() | self._others.keys()) - uids:
            self._deaths.pop(uid, None)
            self._others.pop(uid, None)

    def _is_reserved(self, uid: str, now: float) -> bool:
        return bool(uid) and uid == self._reserved and now < self._reserved_until
