"""LeastLoaded: the replica with the fewest requests in flight."""

from collections.abc import Mapping, Sequence

from fairlead.api.llmdeployment import Routing
from fairlead.routing.policies.round_robin import RoundRobin
from fairlead.routing.prompt import Prompt
from fairlead.routing.replica import Candidate, Decision


class LeastLoaded:
    """Ties go round in turn, so equal replicas share a trickle evenly."""

    def __init__(self, routing: Routing) -> None:
        self._turns = RoundRobin(routing)

    def pick(self, candidates: Sequence[Candidate], prompt: Prompt, in_flight: Mapping[str, int]) -> Decision:
        chosen, reason = self.fewest(candidates)
        return chosen.decided(reason)

    def fewest(self, candidates: Sequence[Candidate]) -> tuple[Candidate, str]:
        """The candidate whose turn it is among the least loaded, and the reason."""
        least = min(candidate.num_in_flight for candidate in candidates)
        ties = [candidate for candidate in candidates if candidate.num_in_flight == least]
        reason = f"fewest in flight ({least}) of {len(candidates)} with room"
        return self._turns.next(ties), f"{reason}, in turn among {len(ties)} equal" if len(ties) > 1 else reason
