"""What the gateways said in the last seconds → one model's rates and percentiles, as people want to see them. Pure.

The autoscaler reads the same windows, but cautiously (`autoscaler.readings.Readings.demand`); this is what was counted.
"""

from dataclasses import dataclass, field

from fairlead.api.signals_message import ReplicaSignals
from fairlead.autoscaler.buckets import Buckets
from fairlead.autoscaler.readings import STALE_SECONDS, GatewayWindow, Readings, Span, newest_loads

WINDOW_SECONDS = 10.0
"""What rates and percentiles are taken over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One model, as all gateways that speak see it. None = nothing happened that could be measured."""

    waiting: int
    """Requests that wait in the gateways."""
    running: int
    """Requests with a replica."""
    arrivals_per_second: float | None
    output_tokens_per_second: float | None
    ttft_p50_seconds: float | None
    """From arrival to first token."""
    ttft_p90_seconds: float | None
    cached_ratio: float | None
    """Prompt tokens expected to come from a cache, of those dispatched."""
    replicas: dict[str, ReplicaSignals] = field(default_factory=dict)
    """By the pod's uid: the newest word on each."""


def speaking(readings: Readings) -> list[GatewayWindow]:
    """Gateways that have said something lately."""
    return [window for window in readings.windows if readings.time - window.latest.time < STALE_SECONDS]


def is_measured(readings: Readings) -> bool:
    """Whether every gateway that speaks has said enough to take rates from."""
    windows = speaking(readings)
    return bool(windows) and all(window.span("", WINDOW_SECONDS).seconds > 0 for window in windows)


def figures(readings: Readings, model: str) -> Figures | None:
    """Of `namespace/name`; None where no gateway speaks of it."""
    windows = [window for window in speaking(readings) if model in window.latest.line.models]
    if not windows:
        return None
    spans = [window.span(model, WINDOW_SECONDS) for window in windows]
    ttft = Buckets.seconds()
    for span in spans:
        ttft = ttft.plus(span.buckets("ttft"))
    prompt, uncached = (sum(span.count(name) for span in spans) for name in ("prompt_tokens", "uncached_prompt_tokens"))
    return Figures(
        waiting=sum(span.now.waiting for span in spans),
        running=sum(span.now.running for span in spans),
        arrivals_per_second=_per_second(spans, "num_arrivals"),
        output_tokens_per_second=_per_second(spans, "output_tokens"),
        ttft_p50_seconds=ttft.percentile(50),
        ttft_p90_seconds=ttft.percentile(90),
        cached_ratio=max(0.0, 1 - uncached / prompt) if prompt else None,
        replicas={uid: each.load for uid, each in newest_loads((w.latest for w in windows), model).items()},
    )


def _per_second(spans: list[Span], name: str) -> float | None:
    """None where every gateway has spoken but once: nothing can be compared yet."""
    measured = [span for span in spans if span.seconds > 0]
    return sum(span.count(name) / span.seconds for span in measured) if measured else None
