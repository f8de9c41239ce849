"""Signals: everything a scaling decision rests on, at one moment, for one LLMDeployment."""

from dataclasses import dataclass

STALE_SECONDS = 10.0
"""Figures older than this may justify more replicas, but not fewer."""


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
    waiting: int
    """Requests that wait in gateways."""
    running: int
    """Requests sent to replicas and not finished."""
    ttft_seconds: float | None
    """Time to first token at the target percentile over the last window; None when no streamed request ended in it."""
    arrivals_per_second: float
    """Requests that came within the last window. For people: no decision rests on it."""
    age_seconds: float
    """Age of the oldest figure from a gateway."""
    num_gateways: int
    """Gateways that are part of it."""
    missing_gateways: int
    """Ready gateways that could not be read."""

    @property
    def is_complete(self) -> bool:
        """Whether all demand is seen: only then may replicas be taken away."""
        return self.num_gateways > 0 and self.missing_gateways == 0 and self.age_seconds <= STALE_SECONDS
