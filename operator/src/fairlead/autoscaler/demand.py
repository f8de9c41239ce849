"""What gateways say of a model, summed: how many requests wait and run, and how long first tokens took since last time.

Who calls it: the operator, with what `fleet/gateways.py` has read. It knows nothing of replicas or targets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.autoscaler.histogram import Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReading:
    """One gateway's figures for one model, as they stood at one moment."""

    waiting: int = 0
    """Requests that wait in the gateway."""
    running: int = 0
    """Requests sent to a replica and not finished."""
    num_ended: float = 0.0
    """Requests that ended since the gateway's start, however they ended."""
    ttft: Histogram = field(default_factory=Histogram)
    """Times to first token since the gateway's start."""


@dataclass(frozen=True, slots=True)
class GatewayReading:
    """All of one gateway's figures."""

    time: float
    """When they were read, in seconds of the reader's monotonic clock."""
    models: Mapping[str, ModelReading]
    """By the LLMDeployment's `namespace/name`; a model that nobody has asked for may be absent."""


@dataclass(frozen=True, slots=True)
class GatewayWindow:
    """A gateway's last reading, and the one before it, where the counters are compared from."""

    latest: GatewayReading
    previous: GatewayReading | None = None
    """None where the gateway was read for the first time: what it counted earlier belongs to no window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a model's clients ask of it, over all gateways."""

    waiting: int
    running: int
    ttft: Histogram
    """Times to first token within the last window."""
    arrivals_per_second: float
    """Requests that came within the last window."""
    age_seconds: float
    """Age of the oldest reading that is part of it; 0 where there is none."""
    num_gateways: int
    """Gateways that are part of it."""
    num_missing: int
    """Ready gateways that have never been read."""


@dataclass(frozen=True, slots=True)
class Readings:
    """Every ready gateway at one moment."""

    time: float
    """Now, on the clock of the readings."""
    windows: tuple[GatewayWindow, ...]
    num_missing: int
    """Ready gateways that have never been read."""

    def demand(self, model: str) -> Demand:
        """For one model, by `namespace/name`. A gateway that has not heard of it has nothing to do for it."""
        latest = [window.latest.models.get(model, ModelReading()) for window in self.windows]
        ttft = Histogram()
        for window in self.windows:
            ttft = ttft.plus(_ttft(window, model))
        return Demand(
            waiting=sum(reading.waiting for reading in latest),
            running=sum(reading.running for reading in latest),
            ttft=ttft,
            arrivals_per_second=sum(_arrivals_per_second(window, model) for window in self.windows),
            age_seconds=max((self.time - window.latest.time for window in self.windows), default=0.0),
            num_gateways=len(self.windows),
            num_missing=self.num_missing,
        )


def _ttft(window: GatewayWindow, model: str) -> Histogram:
    if window.previous is None or model not in window.latest.models:
        return Histogram()
    return window.latest.models[model].ttft.since(window.previous.models.get(model, ModelReading()).ttft)


def _arrivals_per_second(window: GatewayWindow, model: str) -> float:
    """What ended, and what there is more of than before."""
    previous, latest = window.previous, window.latest
    if previous is None or latest.time <= previous.time:
        return 0.0
    now, then = latest.models.get(model, ModelReading()), previous.models.get(model, ModelReading())
    num_ended = now.num_ended - then.num_ended if now.num_ended >= then.num_ended else now.num_ended
    num_more = now.waiting + now.running - then.waiting - then.running
    return max(0.0, num_ended + num_more) / (latest.time - previous.time)
