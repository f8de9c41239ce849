"""Signals: everything a scaling decision rests on, at one moment, for one LLMDeployment."""

from dataclasses import dataclass

from fairlead.autoscaler.demand import Demand


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
        figures: dict[str, int | float | None] = {
            "desired": self.desired,
            "ready": self.ready,
            "starting": self.starting,
            "draining": self.draining,
            "hanging": self.hanging,
            "waiting": demand.waiting,
            "oldest_wait_seconds": demand.oldest_wait_seconds,
            "running": demand.running,
            "arrivals_per_second": demand.arrivals_per_second,
            "likely_arrivals_per_second": demand.likely_arrivals_per_second,
            "uncached_tokens_per_request": demand.uncached_tokens_per_request,
            "output_tokens_per_request": demand.output_tokens_per_request,
            "backlog_tokens": demand.backlog_tokens,
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
