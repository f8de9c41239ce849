"""Routing policies, one module each, made of `spec.routing`; `POLICIES` is the registry."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from fairlead.api.llmdeployment import Routing, RoutingPolicy
from fairlead.routing.policies.least_loaded import LeastLoaded
from fairlead.routing.policies.predicted_ttft import PredictedTTFT
from fairlead.routing.policies.prefix_hash import PrefixHash
from fairlead.routing.policies.round_robin import RoundRobin
from fairlead.routing.prompt import Prompt
from fairlead.routing.replica import Candidate, Decision


class Policy(Protocol):
    """Picks one candidate. May keep state of its own, such as the replica picked last, and changes nothing else."""

    def pick(self, candidates: Sequence[Candidate], prompt: Prompt, in_flight: Mapping[str, int]) -> Decision:
        """Decides among `candidates` (at least one). `in_flight`: this gateway's requests on every ready replica, by
        uid."""
        ...


POLICIES: dict[RoutingPolicy, Callable[[Routing], Policy]] = {
    RoutingPolicy.PREDICTED_TTFT: PredictedTTFT,
    RoutingPolicy.LEAST_LOADED: LeastLoaded,
    RoutingPolicy.ROUND_ROBIN: RoundRobin,
    RoutingPolicy.PREFIX_HASH: PrefixHash,
}
"""By the names users write."""


def make_policy(routing: Routing) -> Policy:
    """The policy that `spec.routing` asks for."""
    return POLICIES[routing.policy](routing)
