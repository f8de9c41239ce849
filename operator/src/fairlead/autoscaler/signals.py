"""Signals: everything a scaling decision rests on, at one moment, for one LLMDeployment. Most of it is the Demand: what
a model's clients ask of it and how its replicas bear it, over all gateways.

Made by `readings.py` and the operator; plain data with the few figures that follow from it. It knows nothing of
targets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from fairlead.api.signals_message import ReplicaSignals
from fairlead.autoscaler.arrivals import NO_SURGE, Surge
from fairlead.autoscaler.buckets import Buckets
from fairlead_common.messages import StepCost
from fairlead_common.profiles import EngineProfile


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
        """Of a replica that begins with a profile, with these limits of its own: it runs as many requests as the
        maximum batch weight has room for, of the mean size that was measured."""
        weight = profile.max_batch_weight
        return cls(
            step_cost=profile.step_cost,
            token_budget=token_budget or profile.max_num_batched_tokens,
            max_num_seqs=max(1, min(max_num_seqs or profile.max_num_seqs, weight.most // weight.request_weight)),
            kv_blocks=profile.num_kv_blocks,
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
    def sure_arrivals_per_second(self) -> float:
        """Requests that come for certain: where more than these would be too many, what waits tells."""
        return self.arrivals_per_second if self.arrivals_per_second_low is None else self.arrivals_per_second_low

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Replicas as Kubernetes has them, demand as the gateways see it."""

    time: float
    """When they were taken, in seconds of a monotonic clock."""
    desired: int
    """Replicas asked for now: `spec.replicas`."""
    ready: int
    """Replicas that answer requests."""
    starting: int
    """Replicas on their way. Those that fail to start are not: nobody should wait for them."""
    draining: int
    """Replicas that finish what they have and then go; they are no capacity."""
    demand: Demand
    """What clients ask, summed over gateways."""
    cold_start_seconds: float | None = None
    """How long a replica of this model takes from being asked for to being ready, as measured; None = never
    measured."""

    hanging: int = 0
    """Replicas that are in a step which will hardly end: asked for, and no capacity."""

    def expecting(self, arrivals_per_second: float) -> Self:
        """The same with another rate of arrivals."""
        return replace(self, demand=replace(self.demand, arrivals_per_second=arrivals_per_second))

    @property
    def lost(self) -> int:
        """Replicas to ask for in the place of those that hang: at most as many as answer, so that what makes every one
        hang is not tried without end."""
        return min(self.hanging, self.ready)

    @property
    def is_complete(self) -> bool:
        """Whether all demand is seen: only then may replicas be taken away."""
        return self.demand.num_gateways > 0 and not self.demand.num_missing and not self.demand.num_stale

    def figures(self, percentile: float) -> dict[str, int | float | None]:
        """The inputs of the decision by name, for logs. Times to first token are those at the percentile."""
        demand, cost = self.demand, self.demand.capacity.step_cost if self.demand.capacity else None
        own = ("desired", "ready", "starting", "draining", "hanging")
        asked = (
            "waiting", "oldest_wait_seconds", "running", "arrivals_per_second", "likely_arrivals_per_second",
            "uncached_tokens_per_request", "output_tokens_per_request", "backlog_tokens",
        )  # fmt: skip
        figures: dict[str, int | float | None] = {
            **{name: getattr(self, name) for name in own},
            **{name: getattr(demand, name) for name in asked},
            "ttft_seconds": demand.ttft.percentile(percentile),
            "predicted_ttft_seconds": demand.predicted_ttft.percentile(percentile),
            "step_base_seconds": cost.base if cost else None,
            "cold_start_seconds": self.cold_start_seconds,
            "age_seconds": demand.age_seconds,
            "num_gateways": demand.num_gateways,
            "missing_gateways": demand.num_missing,
            "stale_gateways": demand.num_stale,
        }
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}
