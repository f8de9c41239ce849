"""The nouns of routing: a replica that can be sent requests and its load, a candidate for one request, and the decision
for it."""

from dataclasses import dataclass

from fairlead_protocol.messages import LoadLine


class Load(LoadLine, kw_only=True, frozen=True):
    """A replica's load as its engine last told it: one load line, and when it came."""

    time: float
    """In seconds of the reader's monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an engine says it takes at once (`GET /fairlead/v1/model`)."""

    max_num_seqs: int
    """Sequences that one step may run: the replica's slots."""
    max_num_queued_tokens: int
    """Prompt tokens that may wait in the engine beside those that run."""
    block_size: int = 16
    """Tokens per block of the KV cache."""
    max_model_len: int | None = None
    """Longest prompt plus completion, in tokens; reported to clients, not used for routing."""
    num_kv_blocks: int | None = None
    """Blocks of its KV cache; None where it has not told."""
    shares_prefixes: bool = True
    """Whether what was computed for one prompt spares another that begins alike."""


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
    digest: str = ""
    """Names its tokenizer and chat template; prompts are tokenised once per digest. Empty = unknown."""
    adapters: frozenset[str] = frozenset()
    """What it serves beside the model itself: none until its engine has told, and then what its last load says."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica with room for one more request, as seen at one moment for that request's prompt."""

    replica: Replica
    num_in_flight: int
    """Requests this gateway has sent it and that are not finished."""
    cached_tokens: int = 0
    """Prompt tokens it will find in its KV cache."""
    uncached_tokens: int = 0
    """Prompt tokens it will have to compute."""
    predicted_ttft_seconds: float | None = None
    """From dispatch to first token; None where the replica's load or step cost is not known."""
    load: Load | None = None
    """Its last load, where fresh."""
    overhead_seconds: float = 0.0
    """The part of the predicted time that is not the engine's steps."""
    loading_seconds: float = 0.0
    """The part of it that the engine takes to load the prompt's adapter; 0 where it has it."""
    is_tokenized: bool = True
    """Whether the prompt's tokens are known, as this replica's tokenizer sees them; else the tokens are estimates."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a request goes, and why in words."""

    replica: Replica
    reason: str
    cached_tokens: int | None = None
    """Prompt tokens the replica is expected to find in its cache; None where the prompt's tokens are not known."""
    uncached_tokens: int | None = None
    """Prompt tokens it is expected to compute; None where the prompt's tokens are not known."""
    predicted_ttft_seconds: float | None = None
    """From dispatch to first token; None where it could not be predicted."""
    dispatch: int = 0
    """This gateway's how-manieth request to the replica it is, from 1 (`x-fairlead-dispatch`)."""
