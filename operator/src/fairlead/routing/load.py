"""A replica's load as its engine last told it, and what its steps cost. Plain data; `predictor.py` computes with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds per unit of each kind of work in a step: what an engine has learnt about itself."""

    base: float = 0.0
    prefill_token: float = 0.0
    prefill_context: float = 0.0
    """Per prefill token and token of context before it."""
    decode_seq: float = 0.0
    kv_token: float = 0.0
    """Per token of running sequences in the cache."""
    residual: float = 0.0
    """Typical relative error of the engine's own predictions with these numbers."""
    prefill_step: float = 0.0
    """On top of `base`, for a step that computes prompt tokens, however many."""

    @classmethod
    def from_map(cls, named: Mapping[str, float]) -> "StepCost | None":
        """From the wire's named map; names this version does not know are ignored. None where nothing is known yet."""
        known = {name: max(0.0, float(named[name])) for name in cls.__slots__ if name in named}
        return cls(**known) if any(seconds > 0.0 for name, seconds in known.items() if name != "residual") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load line (`fairlead_protocol.messages.LoadLine` says what each figure means)."""

    time: float
    """When it came, in seconds of the reader's monotonic clock."""
    running: int
    waiting: int
    queued_prefill_tokens: int
    kv_blocks_free: int
    kv_blocks_total: int
    kv_tokens: int
    token_budget: int
    max_num_seqs: int
    step_age_seconds: float = 0.0
    draining: bool = False
    seq: int = 0
    seen: Mapping[str, int] = field(default_factory=dict)
    """By gateway: the highest number of its requests that is included."""
    step_cost: StepCost | None = None
