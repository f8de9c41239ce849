"""RoundRobin: each replica in turn."""

from collections.abc import Mapping, Sequence

from fairlead.api.llmdeployment import Routing
from fairlead.routing.prompt import Prompt
from fairlead.routing.replica import Candidate, Decision


class RoundRobin:
    """By uid, whatever the load. Replicas that come or go do not change the others' order."""

    def __init__(self, _: Routing) -> None:
        self._last = ""
        """Uid of the replica picked last."""

    def pick(self, candidates: Sequence[Candidate], prompt: Prompt, in_flight: Mapping[str, int]) -> Decision:
        return self.next(candidates).decided(f"next in turn of {len(candidates)} with room")

    def next(self, candidates: Sequence[Candidate]) -> Candidate:
        """The first candidate after the last picked replica, in the circle of uids."""
        last = self._last
        chosen = min(candidates, key=lambda candidate: (candidate.replica.uid <= last, candidate.replica.uid))
        self._last = chosen.replica.uid
        return chosen
