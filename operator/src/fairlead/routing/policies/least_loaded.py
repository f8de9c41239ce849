"""LeastLoaded: the replica with the fewest requests in flight."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fairlead.api.llmdeployment import Routing
from fairlead.routing.policies.round_robin import RoundRobin
from fairlead.routing.prompt import Prompt
from fairlead.routing.replica import Candidate, Decision


class Fewest(NamedTuple):
    """Who is picked among the least loaded, and why."""

    candidate: Candidate
    reason: str
    by_session: bool
    """Whether the request's session decided among equal ones."""


class LeastLoaded:
    """Among equal replicas the one that served the request's session last is picked; else replicas take turns and share
    a trickle evenly."""

    def __init__(self, routing: Routing) -> None:
        self._turns = RoundRobin(routing)

    def pick(self, candidates: Sequence[Candidate], prompt: Prompt, in_flight: Mapping[str, int]) -> Decision:
        fewest = self.fewest(candidates)
        return fewest.candidate.decided(fewest.reason)

    def fewest(self, candidates: Sequence[Candidate]) -> Fewest:
        """Among the least loaded that of the session, or whose turn it is."""
        least = min(candidate.num_in_flight for candidate in candidates)
        ties = [candidate for candidate in candidates if candidate.num_in_flight == least]
        reason = f"fewest in flight ({least}) of {len(candidates)} with room"
        if len(ties) == 1:
            return Fewest(self._turns.next(ties), reason, by_session=False)
        if (served := next((each for each in ties if each.served_session), None)) is not None:
            return Fewest(served, f"{reason}, served its session among {len(ties)} equal", by_session=True)
        return Fewest(self._turns.next(ties), f"{reason}, in turn among {len(ties)} equal", by_session=False)
