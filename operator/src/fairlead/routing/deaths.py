"""Deaths: which of the requests that were on a replica may have killed it. Pure.

A connection per request breaks, one after another, when a process dies: they tell of one death. Who calls it: the
router, with every request whose replica died under it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from fairlead.routing.in_flight import InFlightRequest

SAME_DEATH_SECONDS = 1.0
"""Broken connections to one replica within this time tell of the same death."""


class Suspicion(Enum):
    """Whether a replica's death may be the doing of a request that was there."""

    NONE = "none"
    """It had been computed without harm, and others had not."""
    SHARED = "shared"
    """It is one of several that may have done it."""
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


class DeathBook:
    """The last death of each replica, by uid."""

    def __init__(self) -> None:
        self._deaths: dict[str, _Death] = {}

    def died(
        self,
        sent: InFlightRequest,
        present: Iterable[InFlightRequest],
        is_unproven: Callable[[InFlightRequest], bool],
        now: float,
        *,
        has_others: bool,
    ) -> Suspicion:
        """Its replica died. `present`: all that is still in flight there, this one among them."""
        death = self._deaths.get(sent.uid)
        if death is None or sent.dispatch not in death.present or now - death.time > SAME_DEATH_SECONDS:
            requests = list(present)
            everybody = frozenset(each.dispatch for each in requests)
            unproven = frozenset(each.dispatch for each in requests if is_unproven(each))
            death = self._deaths[sent.uid] = _Death(now, everybody, unproven or everybody, has_others)
        if sent.dispatch not in death.suspects:
            return Suspicion.NONE
        return Suspicion.SHARED if len(death.suspects) > 1 or death.has_others else Suspicion.SOLE

    def keep_only(self, uids: frozenset[str]) -> None:
        """Forgets replicas that left."""
        for uid in self._deaths.keys() - uids:
            del self._deaths[uid]
