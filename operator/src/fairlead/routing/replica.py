"""The nouns of routing: a replica that can be sent requests, a candidate for one request, and the decision for it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine says it takes at once (`GET /fairlead/v1/model`)."""

    max_num_seqs: int
    """Sequences that one step may run."""
    max_num_waiting: int
    """Requests that may wait in the engine beside those that run."""
    max_model_len: int | None = None
    """Longest prompt plus completion, in tokens; reported to clients, not used for routing."""

    @property
    def capacity(self) -> int:
        """Requests that may be inside the engine at once; at least one."""
        return max(1, self.max_num_seqs + self.max_num_waiting)


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine that is ready for requests."""

    uid: str
    """Identity of this pod; a pod recreated under the same name has another one."""
    name: str
    """The pod's name, reported to clients as `x-fairlead-replica`."""
    host: str
    port: int
    limits: Limits | None = None
    """None until the engine has told them; then only its own refusals bound what it is sent."""
    served_name: str = ""
    """What this engine calls its model: replicas differ while a rename is rolled out. Empty = unknown."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica with room for one more request, as seen at one moment."""

    replica: Replica
    num_in_flight: int
    """Requests this gateway has sent it and that are not finished."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a request goes, and why in words."""

    replica: Replica
    reason: str
