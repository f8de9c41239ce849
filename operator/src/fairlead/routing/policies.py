"""Routing policies: which of the candidates gets the request. `POLICIES` maps the names users write to the classes."""

from collections.abc import Sequence
from typing import Protocol

from fairlead.routing.replica import Candidate, Decision


class Policy(Protocol):
    """Picks one candidate. It may keep state of its own (whose turn it is) but changes nothing else."""

    def pick(self, candidates: Sequence[Candidate], now: float) -> Decision:
        """The decision among `candidates` (at least one)."""
        ...


class LeastLoaded:
    """The fewest requests in flight. Ties go round in turn, so that equal replicas share a trickle evenly."""

    def __init__(self) -> None:
        self._turn = _Turn()

    def pick(self, candidates: Sequence[Candidate], now: float) -> Decision:
        least = min(candidate.num_in_flight for candidate in candidates)
        ties = [candidate for candidate in candidates if candidate.num_in_flight == least]
        chosen = self._turn.next(ties)
        reason = f"fewest in flight ({least}) of {len(candidates)} with room"
        if len(ties) > 1:
            reason += f", in turn among {len(ties)} equal"
        return Decision(chosen.replica, reason)


class RoundRobin:
    """Each replica in turn, by uid, whatever its load."""

    def __init__(self) -> None:
        self._turn = _Turn()

    def pick(self, candidates: Sequence[Candidate], now: float) -> Decision:
        return Decision(self._turn.next(candidates).replica, f"next in turn of {len(candidates)} with room")


class _Turn:
    """Goes round by uid. Replicas that come or go do not disturb the order of the others."""

    def __init__(self) -> None:
        self._last = ""

    def next(self, candidates: Sequence[Candidate]) -> Candidate:
        """The first candidate after the one that was picked last, in the circle of uids."""
        last = self._last
        chosen = min(candidates, key=lambda candidate: (candidate.replica.uid <= last, candidate.replica.uid))
        self._last = chosen.replica.uid
        return chosen


DEFAULT_POLICY = "LeastLoaded"
POLICIES: dict[str, type[Policy]] = {"LeastLoaded": LeastLoaded, "RoundRobin": RoundRobin}


def make_policy(name: str) -> Policy:
    """The policy of this name; the default one where this version does not know it."""
    return POLICIES.get(name, POLICIES[DEFAULT_POLICY])()
