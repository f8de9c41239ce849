"""Quarantine: a suspect's time on a replica on which it is kept apart, until it is known that it does not die of it.

A suspect is a request that a replica may have died of. Alone among requests whose prompts have been computed it shows
by the next death that it is the cause, and it takes nobody else with it who has not begun yet. Pure: who calls it is
the router; who waits is not its business.
"""

from collections.abc import Collection, Sequence

from fairlead.routing.in_flight import TRIAL_SECONDS, InFlightBook
from fairlead.routing.replica import Candidate


class Quarantine:
    """Of one model's replicas. Except for the last replica that is well, others stay away from where there is one."""

    def __init__(self, book: InFlightBook) -> None:
        self._book = book
        self._reserved = ""
        """The replica that empties of unproven requests for the sake of a suspect; by uid."""
        self._reserved_until = 0.0

    def for_others(self, candidates: Sequence[Candidate], well: Collection[str], now: float) -> Sequence[Candidate]:
        """Where one that is no suspect may go. `well`: the replicas that may be sent requests, full ones too."""
        kept = {uid for uid in well if self._is_reserved(uid, now) or self._book.has_trial(uid, now)}
        if not kept or len(kept) == len(well):
            return candidates
        return [each for each in candidates if each.replica.uid not in kept]

    def for_suspect(
        self, candidates: Sequence[Candidate], well: Collection[str], now: float, *, patient: bool
    ) -> Sequence[Candidate]:
        """Where a suspect may go: never to another one, nor to the last replica that has none.

        `patient`: nor to where another request is unproven; a replica is reserved for it, and soon has none.
        """
        on_trial = {uid for uid in well if self._book.has_trial(uid, now)}
        if len(on_trial) >= max(1, len(well) - 1):
            return []
        free = [each for each in candidates if each.replica.uid not in on_trial]
        quiet = [each for each in free if not self._book.has_unproven(each.replica.uid, now)]
        if patient and free and not quiet:
            self._reserve([each.replica.uid for each in free], now)
            return []
        self._reserved = ""
        return quiet or free

    def next_change(self, now: float) -> float | None:
        """When time alone ends a trial, or makes a reserved replica ready for one; None where there is neither."""
        kept_free = self._book.requests(self._reserved) if self._is_reserved(self._reserved, now) else ()
        requests = [*self._book.suspects(), *kept_free]
        ends = (each.dispatched_at + TRIAL_SECONDS for each in requests if self._book.is_unproven(each, now))
        return min(ends, default=None)

    def _reserve(self, uids: Sequence[str], now: float) -> None:
        if not self._is_reserved(self._reserved, now) or self._reserved not in uids:
            self._reserved = uids[0]
        self._reserved_until = now + TRIAL_SECONDS

    def _is_reserved(self, uid: str, now: float) -> bool:
        return bool(uid) and uid == self._reserved and now < self._reserved_until
