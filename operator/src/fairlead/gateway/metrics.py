"""The gateway's metrics, `fairlead_gateway_…`. Labels are bounded: `model` is an LLMDeployment's `namespace/name`, or
empty.

Counters and histograms are kept as requests end; gauges are read from the pools when somebody scrapes, so they cost the
data path nothing and vanish with what they describe.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fairlead.gateway.observe import Observation
from fairlead.gateway.pools import Pools
from fairlead.gateway.proxy import ReplicaFailed

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One registry per gateway, so that several can live in one process."""

    def __init__(self, pools: Pools) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "fairlead_gateway_requests_total",
            "Requests that ended, by outcome and the HTTP status the client got (0: it went away before it got one)",
            ["model", "outcome", "status"],
            registry=self.registry,
        )
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token; streamed answers only"
        )
        self.duration = self._histogram("request_duration_seconds", "From a request's arrival to its end")
        self.queue_wait = self._histogram("queue_wait_seconds", "Time a request waited in the gateway for a replica")
        self.tokens = Counter(
            "fairlead_gateway_tokens_total",
            "Tokens of answered requests as engines counted them; kind is prompt, cached (of those) or completion",
            ["model", "kind"],
            registry=self.registry,
        )
        self.failed_attempts = Counter(
            "fairlead_gateway_failed_attempts_total",
            "Attempts that a replica did not serve, by what was wrong; engine_full is a refusal, not a fault",
            ["model", "failure"],
            registry=self.registry,
        )
        self.registry.register(_PoolGauges(pools))

    def request_ended(self, seen: Observation) -> None:
        """Counts a request that is over."""
        model = seen.model
        self.requests.labels(model, str(seen.outcome), str(seen.status)).inc()
        self.duration.labels(model).observe(seen.duration_seconds)
        if seen.num_attempts:
            self.queue_wait.labels(model).observe(seen.queue_seconds)
        if seen.stream and seen.ttft_seconds is not None:
            self.ttft.labels(model).observe(seen.ttft_seconds)
        if (usage := seen.usage) is not None:
            self.tokens.labels(model, "prompt").inc(usage.prompt_tokens)
            self.tokens.labels(model, "cached").inc(usage.cached_tokens)
            self.tokens.labels(model, "completion").inc(usage.completion_tokens or 0)

    def attempt_failed(self, seen: Observation, failed: ReplicaFailed) -> None:
        """Counts an attempt that a replica did not serve."""
        label = "engine_full" if failed.failure is None else failed.failure.label
        self.failed_attempts.labels(seen.model, label).inc()

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"fairlead_gateway_{name}", text, ["model"], buckets=_SECONDS, registry=self.registry)


class _PoolGauges(Collector):
    """Reads the pools at the moment of the scrape."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def collect(self) -> Iterable[GaugeMetricFamily]:
        waiting = _gauge("queue_requests", "Requests that wait in the gateway for a replica", ["model"])
        waiting_bytes = _gauge("queue_bytes", "Bytes of the bodies of those requests", ["model"])
        oldest = _gauge("queue_oldest_wait_seconds", "How long the first in line has waited", ["model"])
        ready = _gauge("ready_replicas", "Replicas that may be sent requests", ["model"])
        in_flight = _gauge("in_flight_requests", "Requests sent to a replica and not finished", ["model", "replica"])
        for pool in self._pools:
            label, queue = pool.model.key, pool.queue
            waiting.add_metric([label], len(queue))
            waiting_bytes.add_metric([label], queue.num_bytes)
            oldest.add_metric([label], queue.oldest_wait_seconds(pool.now()))
            ready.add_metric([label], len(pool.router.replicas))
            for replica in pool.router.replicas:
                in_flight.add_metric([label, replica.name], pool.router.in_flight.count(replica.uid))
        return [waiting, waiting_bytes, oldest, ready, in_flight]


def _gauge(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"fairlead_gateway_{name}", text, labels=labels)
