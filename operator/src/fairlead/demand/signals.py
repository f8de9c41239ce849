"""Signals: all inputs of a scaling decision for one LLMDeployment at one moment. The largest part is the Demand: the
clients' requests and the replicas' work for them, over all gateways.

Made by `readings.py` and the operator; plain data and figures derived from it. Knows nothing of targets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from fairlead.api.signals_message import ReplicaSignals
from fairlead.demand.arrivals import Count
from fairlead.demand.buckets import Buckets
from fairlead_common.wire.messages import StepCost
from fairlead_common.wire.profiles import EngineProfile

UNKNOWN_COLD_START_SECONDS = 10.0
"""Seconds a replica takes to start, before the first measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The limits of one replica, and the cost of its steps."""

    step_cost: StepCost | None
    """Mean of the engines' own estimates; None = no engine has an estimate yet."""
    token_budget: int
    """Tokens that one step computes."""
    max_num_seqs: int
    """Requests that run at once."""
    kv_blocks: int
    """Blocks of its cache."""

    @classmethod
    def of(cls, loads: Iterable[ReplicaSignals]) -> Self | None:
        """Of the smallest of these replicas; those that drain do not count. None where there is none."""
        known = [load for load in loads if not load.draining]
        if not known:
            return None
        costs = [load.step_cost for load in known if load.step_cost.is_known]
        names = StepCost.__struct_fields__
        mean = {name: sum(getattr(cost, name) for cost in costs) / len(costs) for name in names} if costs else None
        return cls(
            step_cost=None if mean is None else StepCost(**mean),
            token_budget=min(load.token_budget for load in known),
            max_num_seqs=min(load.max_num_seqs for load in known),
            kv_blocks=min(load.kv_blocks_total for load in known),
        )

    @classmethod
    def measured(cls, profile: EngineProfile, max_num_seqs: int | None, token_budget: int | None) -> Self:
        """The capacity by a measured profile, with the replica's own limits: as many requests of the measured mean size
        as the maximum batch weight holds."""
        weight = profile.max_batch_weight
        return cls(
            step_cost=profile.step_cost,
            token_budget=token_budget or profile.max_num_batched_tokens,
            max_num_seqs=max(1, min(max_num_seqs or profile.max_num_seqs, weight.most // weight.request_weight)),
            kv_blocks=profile.num_kv_blocks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Demand for one model. Rates and times are of the last seconds (`readings.py`)."""

    waiting: int = 0
    """Requests that wait in gateways."""
    waiting_uncached_tokens: int = 0
    """Prompt tokens of the waiting requests, less cached tokens."""
    oldest_wait_seconds: float = 0.0
    """Age of the oldest waiting request; the minimum over the last seconds."""
    running: int = 0
    """Requests sent to replicas and not finished."""
    batch_kv_tokens: int = 0
    """Tokens of lines of batches in the replicas' caches, for which no replica is added or kept."""
    lasting_running: float = 0.0
    """The fewest of these in the last seconds."""
    arrivals_per_second: float = 0.0
    """Arriving requests: counted over the last minute, and by `History.complete` the rate to add replicas for."""
    arrivals_per_second_high: float = 0.0
    """The rate for which there must be room before a replica goes. At least `arrivals_per_second`."""
    num_recent_arrivals: int = 0
    """Requests that came within the last few seconds."""
    counted: Mapping[str, Count] = field(default_factory=dict)
    """Requests since the start of each gateway, by the gateway's run."""
    uncached_tokens_per_request: float = 0.0
    """Uncached prompt tokens per request, on average."""
    prompt_tokens_per_request: float = 0.0
    """All prompt tokens per request, on average."""
    output_tokens_per_request: float = 0.0
    """Tokens of an answer, on average; an assumption before the first one has ended."""
    uncached_per_request: Buckets = field(default_factory=Buckets.tokens)
    """How the uncached prompt tokens of single requests are spread."""
    ttft: Buckets = field(default_factory=Buckets.seconds)
    """Measured times from arrival to first token, of streamed answers, over the last minute."""
    recent_ttft: Buckets = field(default_factory=Buckets.seconds)
    """The part of `ttft` in the last few seconds."""
    predicted_ttft: Buckets = field(default_factory=Buckets.seconds)
    """The gateways' predictions for the same requests."""
    tpot: Buckets = field(default_factory=Buckets.seconds)
    """Measured times per output token of streamed answers that ended in the last minute."""
    recent_tpot: Buckets = field(default_factory=Buckets.seconds)
    """The part of `tpot` in the last few seconds."""
    idle_seconds: float = 0.0
    """Since a request last came, waited or ran at a gateway, as far as gateways have been followed."""
    loads: Mapping[str, ReplicaSignals] = field(default_factory=dict)
    """The replicas' newest loads from any gateway, by the pod's uid."""
    capacity: Capacity | None = None
    """What one replica takes; None where no load is known."""
    age_seconds: float = 0.0
    """Age of the oldest gateway's last line; 0 where there is none."""
    num_gateways: int = 0
    """Gateways with signals in this demand."""
    num_missing: int = 0
    """Ready gateways that have never said anything."""
    num_stale: int = 0
    """Gateways whose last line is too old to exclude later requests."""

    @property
    def output_tokens_per_second(self) -> float:
        """Tokens that will have to be generated."""
        return self.arrivals_per_second * self.output_tokens_per_request

    @property
    def mean_context(self) -> float:
        """Cached tokens per running request: the prompt and, on average, half of the answer."""
        return self.prompt_tokens_per_request + self.output_tokens_per_request / 2.0

    @property
    def backlog_tokens(self) -> int:
        """Prompt tokens to compute before the turn of a new request, in gateways and engines."""
        return self.waiting_uncached_tokens + self.queued_tokens

    @property
    def queued_tokens(self) -> int:
        """The part of `backlog_tokens` in engines."""
        return sum(load.queued_prefill_tokens for load in self._working)

    @property
    def kv_tokens(self) -> int:
        """Tokens of running requests in the replicas' caches."""
        return max(0, sum(load.kv_tokens for load in self._working) - self.batch_kv_tokens)

    @property
    def kv_blocks_used(self) -> int:
        """Blocks of the replicas' caches held by running requests."""
        used = sum(load.kv_blocks_total - load.kv_blocks_free for load in self._working)
        all_tokens = sum(load.kv_tokens for load in self._working)
        return used if not self.batch_kv_tokens or not all_tokens else round(used * self.kv_tokens / all_tokens)

    @property
    def _working(self) -> list[ReplicaSignals]:
        return [load for load in self.loads.values() if not load.draining]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Replicas as seen by Kubernetes, demand as seen by the gateways."""

    time: float
    """Seconds of a monotonic clock."""
    desired: int
    """Replicas asked for now: `spec.replicas`."""
    ready: int
    """Replicas that answer requests."""
    starting: int
    """Replicas on their way, without failed starts: no request should wait for these."""
    draining: int
    """Replicas that finish their requests and then go; not counted as capacity."""
    demand: Demand
    """What clients ask, summed over gateways."""
    cold_start_seconds: float | None = None
    """Measured seconds from the request for a replica to its readiness; None = never measured."""

    coming: tuple[tuple[float, int], ...] = ()
    """When replicas on their way are expected: seconds from now, and how many are ready then in all. As far as known
    (`History.complete`), the soonest first."""
    hanging: int = 0
    """Replicas in a step without an end in sight; asked for, but not counted as capacity."""

    steady_seconds: float = 0.0
    """For how long the rate of arrivals has been the same (`History.complete`)."""

    def careful(self) -> Self:
        """The same with the high rate of arrivals."""
        rate = max(self.demand.arrivals_per_second, self.demand.arrivals_per_second_high)
        return replace(self, demand=replace(self.demand, arrivals_per_second=rate))

    @property
    def start_seconds(self) -> float:
        """Seconds until a replica asked for now could be ready."""
        return UNKNOWN_COLD_START_SECONDS if self.cold_start_seconds is None else self.cold_start_seconds

    @property
    def lost(self) -> int:
        """Replicas to ask for instead of hanging replicas; at most as many as are ready, which bounds the growth if
        every replica hangs."""
        return min(self.hanging, self.ready)

    @property
    def is_complete(self) -> bool:
        """Whether all demand is seen: only then may replicas be taken away."""
        return self.demand.num_gateways > 0 and not self.demand.num_missing and not self.demand.num_stale

    def figures(self, percentile: float) -> dict[str, int | float | None]:
        """The decision's inputs by name, for logs. Times to first and per output token are at the percentile."""
        demand, cost = self.demand, self.demand.capacity.step_cost if self.demand.capacity else None
        own = ("desired", "ready", "starting", "draining", "hanging")
        asked = (
            "waiting", "oldest_wait_seconds", "running", "arrivals_per_second",
            "uncached_tokens_per_request", "output_tokens_per_request", "backlog_tokens",
        )  # fmt: skip
        figures: dict[str, int | float | None] = {
            **{name: getattr(self, name) for name in own},
            **{name: getattr(demand, name) for name in asked},
            "ttft_seconds": demand.ttft.percentile(percentile),
            "predicted_ttft_seconds": demand.predicted_ttft.percentile(percentile),
            "tpot_seconds": demand.tpot.percentile(percentile),
            "step_base_seconds": cost.base if cost else None,
            "cold_start_seconds": self.cold_start_seconds,
            "age_seconds": demand.age_seconds,
            "num_gateways": demand.num_gateways,
            "missing_gateways": demand.num_missing,
            "stale_gateways": demand.num_stale,
        }
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}
