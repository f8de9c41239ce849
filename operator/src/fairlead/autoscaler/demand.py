"""Demand: what a model's clients ask of it, and how its replicas bear it, over all gateways at one moment.

Made by `readings.py`; plain data with the few figures that follow from it. It knows nothing of targets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fairlead.api.signals_message import ReplicaSignals
from fairlead.autoscaler.arrivals import NO_SURGE, Surge
from fairlead.autoscaler.buckets import Buckets
from fairlead_protocol.messages import StepCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What one replica takes at once, and what its steps cost."""

    step_cost: StepCost | None
    """The mean of what the engines have learnt about themselves; None where none has yet."""
    token_budget: int
    """Tokens that one step computes."""
    max_num_seqs: int
    """Requests that run at once."""
    kv_blocks: int
    """Blocks of its cache."""

    @classmethod
    def of(cls, loads: Iterable[ReplicaSignals]) -> "Capacity | None":
        """Of the smallest of these replicas; those that drain do not count. None where there is none."""
        known = [load for load in loads if not load.draining]
        if not known:
            return None
        costs = [load.step_cost for load in known if load.step_cost.is_known]
        return cls(
            step_cost=_mean_cost(costs) if costs else None,
            token_budget=min(load.token_budget for load in known),
            max_num_seqs=min(load.max_num_seqs for load in known),
            kv_blocks=min(load.kv_blocks_total for load in known),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """For one model. Rates and times are those of the last seconds; `readings.py` says how many, and why."""

    waiting: int = 0
    """Requests that wait in gateways."""
    waiting_uncached_tokens: int = 0
    """Their prompt tokens that a replica would have to compute."""
    oldest_wait_seconds: float = 0.0
    """For how long the oldest of them has waited: the least it was in the last seconds."""
    lasting_waiting: float = 0.0
    """Requests that waited at every moment of the last seconds."""
    running: int = 0
    """Requests sent to replicas and not finished."""
    arrivals_per_second: float = 0.0
    """Requests that come: as many as were counted, where that took long enough, and else what is certain."""
    arrivals_per_second_low: float | None = None
    """Requests that come for certain: what a replica is added for before anything waits, so that chance alone adds
    none. Never above the rate above; None where that is certain itself."""
    arrivals_per_second_high: float = 0.0
    """Requests that may well come: what must find room before a replica is taken away. Never below the rate above."""
    num_recent_arrivals: int = 0
    """Requests that came within the last few seconds."""
    arrivals_growth: float = 0.0
    """By how many requests per second the rate grows each second; 0 where it does not grow for sure."""
    surge: Surge = NO_SURGE
    """The rate since it last rose, where it rose for certain: what most likely comes, long before all of it is
    certain."""
    uncached_tokens_per_request: float = 0.0
    """Prompt tokens that a replica had to compute, on average."""
    prompt_tokens_per_request: float = 0.0
    """All of them, on average."""
    output_tokens_per_request: float = 0.0
    """Tokens of an answer, on average; an assumption before the first one has ended."""
    uncached_per_request: Buckets = field(default_factory=Buckets.tokens)
    """How the uncached prompt tokens of single requests are spread."""
    ttft: Buckets = field(default_factory=Buckets.seconds)
    """Measured times from arrival to first token, of streamed answers, over the last minute."""
    recent_ttft: Buckets = field(default_factory=Buckets.seconds)
    """Those of the last few seconds."""
    predicted_ttft: Buckets = field(default_factory=Buckets.seconds)
    """The same as the gateways foresaw them, request by request."""
    idle_seconds: float = 0.0
    """Since a request last came, waited or ran at a gateway, as far as gateways have been followed."""
    loads: Mapping[str, ReplicaSignals] = field(default_factory=dict)
    """Replicas' last loads by the pod's uid: of what several gateways say of one, the newest."""
    capacity: Capacity | None = None
    """What one replica takes; None where no load is known."""
    age_seconds: float = 0.0
    """Age of the oldest gateway's last line; 0 where there is none."""
    num_gateways: int = 0
    """Gateways that are part of it."""
    num_missing: int = 0
    """Ready gateways that have never said anything."""
    num_stale: int = 0
    """Gateways whose last line is too old to believe that nothing has come since."""

    @property
    def likely_arrivals_per_second(self) -> float:
        """Requests that most likely come."""
        return max(self.arrivals_per_second, self.surge.per_second)

    @property
    def output_tokens_per_second(self) -> float:
        """Tokens that will have to be generated."""
        return self.arrivals_per_second * self.output_tokens_per_request

    @property
    def mean_context(self) -> float:
        """Tokens in the cache per running request: its prompt and, on average, half of its answer."""
        return self.prompt_tokens_per_request + self.output_tokens_per_request / 2.0

    @property
    def backlog_tokens(self) -> int:
        """Prompt tokens to compute before a request that comes now has its turn: in gateways and in engines."""
        return self.waiting_uncached_tokens + self.queued_tokens

    @property
    def queued_tokens(self) -> int:
        """Those of them that are in engines."""
        return sum(load.queued_prefill_tokens for load in self._working)

    @property
    def kv_tokens(self) -> int:
        """Tokens of running requests in the replicas' caches."""
        return sum(load.kv_tokens for load in self._working)

    @property
    def kv_blocks_used(self) -> int:
        """Blocks of the replicas' caches that running requests hold."""
        return sum(load.kv_blocks_total - load.kv_blocks_free for load in self._working)

    @property
    def _working(self) -> list[ReplicaSignals]:
        return [load for load in self.loads.values() if not load.draining]


def _mean_cost(costs: list[StepCost]) -> StepCost:
    names = StepCost.__struct_fields__
    return StepCost(**{name: sum(getattr(cost, name) for cost in costs) / len(costs) for name in names})
