"""The operator's own HTTP port: /health (the process lives), /ready (it may take over), /metrics.

Figures of LLMDeployments are read from kopf's indexes at the scrape: they cost nothing in between and vanish with their
object. Only the leader watches, so only the leader has any.
"""

from collections import Counter as CountOf
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.api.llmdeployment import InvalidSpec, LLMDeployment, ScalingMode
from fairlead.api.quantities import parse_duration
from fairlead.api.scaling_policy import fewest_replicas, most_replicas, targets_of
from fairlead.api.scaling_schedules import bounds_at
from fairlead.controller.observe import Cluster, Observed
from fairlead.controller.pod_diagnosis import Stage
from fairlead.controller.pod_starts import StartStage
from fairlead.controller.reconcile import ReconcileOutcome

DURATION_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_PREFIX = "fairlead_operator"
_DIRECTIONS = ("up", "down")


class OperatorMetrics:
    """One per process; owns its registry, so that tests can have many."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ours: dict[str, Any] = {"namespace": _PREFIX, "registry": self.registry}
        self._reconciliations = Counter(
            "reconciliations_total", "Reconciliations, by how they ended.", ["outcome"], **ours
        )
        self.errors = Counter("reconciliation_errors_total", "Reconciliations that failed and are tried again.", **ours)
        self._duration = Histogram(
            "reconciliation_seconds", "Duration of a reconciliation.", buckets=DURATION_BUCKETS, **ours
        )
        self.waiting = Gauge("queue_length", "LLMDeployments that wait to be reconciled.", **ours)
        self.leader = Gauge("leader", "1 while this process holds the lease, else 0.", **ours)
        self._decisions = Counter(
            "scaling_decisions_total",
            "Changes of spec.replicas by the autoscaler, by LLMDeployment (namespace/name) and direction (up, down).",
            ["llmdeployment", "direction"],
            **ours,
        )
        self._desired = Gauge(
            "desired_replicas",
            "Replicas that the autoscaler asks for, by LLMDeployment (namespace/name).",
            ["llmdeployment"],
            **ours,
        )
        self._wanted = Gauge(
            "wanted_replicas",
            "Replicas that the demand asks for by itself, before stabilisation and limits.",
            ["llmdeployment"],
            **ours,
        )
        for outcome in ReconcileOutcome:
            self._reconciliations.labels(outcome)
        ProcessCollector(**ours)

    def observe(self, outcome: ReconcileOutcome, seconds: float) -> None:
        """A reconciliation has ended."""
        self._reconciliations.labels(outcome).inc()
        self._duration.observe(seconds)

    def watch_fleet(self, cluster: Cluster) -> None:
        """Where the figures of the LLMDeployments themselves are read from."""
        self.registry.register(FleetFigures(cluster))

    def recommended(self, llmdeployment: str, *, desired: int, wanted: int) -> None:
        """The autoscaler has looked at an LLMDeployment (`namespace/name`)."""
        self._desired.labels(llmdeployment).set(desired)
        self._wanted.labels(llmdeployment).set(wanted)
        for direction in _DIRECTIONS:  # from 0 on, or nobody would see the first change as an increase
            self._decisions.labels(llmdeployment, direction)

    def scaled(self, llmdeployment: str, before: int, after: int) -> None:
        """The autoscaler has changed a count."""
        self._decisions.labels(llmdeployment, "up" if after > before else "down").inc()

    def scaled_no_longer(self, llmdeployment: str) -> None:
        """Its figures are not exported any more."""
        for metric in (self._desired, self._wanted):
            with suppress(KeyError):  # nothing was recommended
                metric.remove(llmdeployment)
        for direction in _DIRECTIONS:
            with suppress(KeyError):  # it has never been scaled that way
                self._decisions.remove(llmdeployment, direction)


_FIGURES: dict[str, tuple[str, tuple[str, ...]]] = {
    "spec_replicas": ("Replicas that spec.replicas asks for, whoever wrote it.", ()),
    "pods": ("Engine pods by stage: ready, starting, failing, draining or finished.", ("stage",)),
    "min_replicas": ("Least replicas that the autoscaler may ask for.", ()),
    "max_replicas": ("Most replicas that the autoscaler may ask for.", ()),
    "queue_depth_target": ("Waiting requests per replica that the fleet is held to.", ()),
    "time_to_first_token_target_seconds": (
        "Time to first token that the fleet is held to, at that percentile.",
        ("percentile",),
    ),
    "time_to_first_token_seconds": (
        "Time to first token at the target's percentile, as the autoscaler last said it; absent while no stream has "
        "told one lately.",
        ("percentile",),
    ),
    "time_per_output_token_target_seconds": (
        "Time per output token that the fleet is held to, at that percentile.",
        ("percentile",),
    ),
    "time_per_output_token_seconds": (
        "Time per output token at the target's percentile, as the autoscaler last said it; absent while no stream has "
        "told one lately.",
        ("percentile",),
    ),
    "cold_start_seconds": ("Mean of what pods have taken from creation to ready.", ()),
    "startup_seconds": (
        "What the replica took that was last to become ready, by stage: schedule, image, download or load.",
        ("stage",),
    ),
    "download_bytes": ("Bytes of the model that pods which download it have.", ("pod",)),
    "download_total_bytes": ("Bytes of the model that they are to have.", ("pod",)),
    "condition": (
        "The conditions of the status: 1 for the status and reason that each type has.",
        ("type", "status", "reason"),
    ),
}
"""Name without prefix → help, and labels beside `llmdeployment`."""
Figure = tuple[str, tuple[str, ...], float]
"""Name without prefix, values of the labels beside `llmdeployment`, value."""


class FleetFigures(Collector):
    """What is seen of every LLMDeployment; each metric is labelled `llmdeployment` (namespace/name)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def collect(self) -> Iterable[Metric]:
        """All figures of all LLMDeployments that are known."""
        families = {
            name: GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=["llmdeployment", *labels])
            for name, (text, labels) in _FIGURES.items()
        }
        for key in sorted(self._cluster.keys()):
            observed = self._cluster.last_seen(key)
            for name, labels, value in () if observed is None else figures(observed):
                families[name].add_metric(["/".join(key), *labels], value)
        return families.values()


def figures(observed: Observed) -> Iterable[Figure]:
    """All figures of one LLMDeployment. An invalid spec has no targets."""
    stages = CountOf(diagnosis.stage for diagnosis in observed.diagnoses)
    yield from (("pods", (str(stage),), float(stages[stage])) for stage in Stage)
    status = observed.body.get("status") or {}
    for condition in status.get("conditions") or []:
        yield "condition", tuple(str(condition.get(field, "")) for field in ("type", "status", "reason")), 1.0
    for stage in StartStage:
        with suppress(ValueError):
            yield "startup_seconds", (str(stage),), parse_duration((status.get("startup") or {}).get(stage) or "")
    for pod in observed.pods:
        progress = observed.downloads.get(pod["metadata"].get("uid", ""))
        if progress is not None:
            yield "download_bytes", (pod["metadata"]["name"],), float(progress.bytes)
        if progress is not None and progress.total_bytes is not None:
            yield "download_total_bytes", (pod["metadata"]["name"],), float(progress.total_bytes)
    try:
        deployment = LLMDeployment.from_body(observed.body)
    except InvalidSpec:
        return
    yield "spec_replicas", (), float(deployment.desired_replicas)
    autoscaling = deployment.spec.autoscaling
    if autoscaling is None or autoscaling.mode is not ScalingMode.FAIRLEAD:
        return
    bounds = bounds_at(autoscaling, datetime.now(UTC))
    yield "min_replicas", (), float(fewest_replicas(bounds))
    yield "max_replicas", (), float(most_replicas(bounds))
    targets = targets_of(autoscaling)
    percentile = (str(targets.percentile),)
    if targets.queue_depth is not None:
        yield "queue_depth_target", (), float(targets.queue_depth)
    if targets.time_to_first_token is not None:
        yield "time_to_first_token_target_seconds", percentile, targets.time_to_first_token
    if targets.time_per_output_token is not None:
        yield "time_per_output_token_target_seconds", percentile, targets.time_per_output_token
    scaling = status.get("scaling") or {}  # where the autoscaler says what its decision rests on
    for name, signal in (("time_to_first_token_seconds", "ttft"), ("time_per_output_token_seconds", "tpot")):
        with suppress(ValueError):
            yield name, percentile, parse_duration((scaling.get("signals") or {}).get(signal) or "")
    with suppress(ValueError):
        yield "cold_start_seconds", (), parse_duration(scaling.get("coldStart") or "")


def health_app(metrics: OperatorMetrics) -> web.Application:
    """A waiting candidate is as ready as the leader: it serves no requests and can take over."""

    async def alive(_: web.Request) -> web.Response:
        """200 while the process lives."""
        return web.Response(text="ok\n")

    async def export(_: web.Request) -> web.Response:
        """Metrics in Prometheus' text format."""
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/health", alive)
    app.router.add_get("/ready", alive)
    app.router.add_get("/metrics", export)
    return app


@asynccontextmanager
async def serve_health(metrics: OperatorMetrics, host: str, port: int) -> AsyncIterator[None]:
    """Serves while the context lasts; port 0 = not at all. Raises OSError when the port is taken."""
    if port == 0:
        yield
        return
    runner = web.AppRunner(health_app(metrics), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()
