"""The nouns of routing: a replica and its load, a candidate for one request, and the decision."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fairlead.routing.sessions import SessionPlace
from fairlead_common.wire.messages import LoadLine


class Load(LoadLine, kw_only=True, frozen=True):
    """One load line of a replica, and its arrival."""

    time: float
    """In seconds of the reader's monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an engine takes at once (`GET /fairlead/v1/model`)."""

    max_num_seqs: int
    """Sequences that one step may run: the replica's slots."""
    max_num_queued_tokens: int
    """Prompt tokens that may queue in the engine."""
    block_size: int = 16
    """Tokens per block of the KV cache."""
    max_model_len: int | None = None
    """Longest prompt plus completion, in tokens; reported to clients, not used for routing."""
    num_kv_blocks: int | None = None
    """Blocks of its KV cache; None where it has not told."""
    shares_prefixes: bool = True
    """Whether prompts share the cache of common beginnings."""
    keeps_states: bool = False
    """Whether a cached prefix is of use up to its deepest block with a kept state alone."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine that is ready for requests."""

    uid: str
    """The pod's uid; a pod recreated under the same name has another one."""
    name: str
    """The pod's name, reported to clients as `x-fairlead-replica`."""
    host: str
    port: int
    limits: Limits | None = None
    """None = not told yet: only refusals bound the load."""
    served_name: str = ""
    """What this engine calls its model: replicas differ while a rename is rolled out. Empty = unknown."""
    digest: str = ""
    """Names its tokenizer and chat template; prompts are tokenised once per digest. Empty = unknown."""
    adapters: frozenset[str] = frozenset()
    """Adapters served beside the model, by the last load; none until the engine has told."""
    capabilities: tuple[str, ...] = ()
    """What its model can do, for lists of models; empty until the engine has told."""
    node: str = ""
    """Where the pod runs; empty = not known."""
    since: str = ""
    """When the pod was created (RFC 3339); empty = not known."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a request goes, and why in words."""

    replica: Replica
    reason: str
    cached_tokens: int | None = None
    """Prompt tokens expected in the replica's cache; None = untokenised prompt."""
    uncached_tokens: int | None = None
    """Prompt tokens it is expected to compute; None where the prompt's tokens are not known."""
    predicted_ttft_seconds: float | None = None
    """From dispatch to first token; None where it could not be predicted."""
    dispatch: int = 0
    """This gateway's number of the request on the replica, from 1 (`x-fairlead-dispatch`)."""
    session: SessionPlace | None = None
    """Whether it is the replica of the request's session; None = the client names no session."""
    candidates: "Sequence[Candidate]" = field(default=(), repr=False, compare=False)
    """The replicas that the policy chose among."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica with room for one request, as seen at one moment for its prompt."""

    replica: Replica
    num_in_flight: int
    """This gateway's unfinished requests there."""
    cached_tokens: int = 0
    """Prompt tokens found in the KV cache."""
    uncached_tokens: int = 0
    """Prompt tokens it will have to compute."""
    predicted_ttft_seconds: float | None = None
    """From dispatch to first token; None = load or step cost unknown."""
    load: Load | None = None
    """Its last load, where fresh."""
    overhead_seconds: float = 0.0
    """The predicted time's part beside the engine's steps."""
    loading_seconds: float = 0.0
    """The predicted time's part for loading the adapter; 0 = loaded."""
    is_tokenized: bool = True
    """Whether this replica's tokenizer has read the prompt; else tokens are estimates."""
    served_session: bool = False
    """Whether it served the request's session last."""

    def decided(self, reason: str) -> Decision:
        """The decision for this candidate; estimated token counts are left out."""
        return Decision(
            self.replica,
            reason,
            cached_tokens=self.cached_tokens if self.is_tokenized else None,
            uncached_tokens=self.uncached_tokens if self.is_tokenized else None,
            predicted_ttft_seconds=self.predicted_ttft_seconds,
        )
