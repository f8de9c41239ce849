"""The operator's metrics, all in one place; served at /metrics by `health_app`."""

from collections.abc import Callable
from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from fairlead.controller.fleet_figures import FleetFigures
from fairlead.controller.observe import Cluster
from fairlead.controller.reconcile import ReconcileOutcome

DURATION_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_DIRECTIONS = ("up", "down")


class OperatorMetrics:
    """One per process; owns its registry, so that tests can have many."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._reconciliations = Counter(
            "fairlead_operator_reconciliations_total",
            "Reconciliations, by how they ended.",
            ["outcome"],
            registry=self.registry,
        )
        self._errors = Counter(
            "fairlead_operator_reconciliation_errors_total",
            "Reconciliations that failed and are tried again.",
            registry=self.registry,
        )
        self._duration = Histogram(
            "fairlead_operator_reconciliation_seconds",
            "Duration of a reconciliation.",
            buckets=DURATION_BUCKETS,
            registry=self.registry,
        )
        self._waiting = Gauge(
            "fairlead_operator_queue_length",
            "LLMDeployments that wait to be reconciled.",
            registry=self.registry,
        )
        self._leader = Gauge(
            "fairlead_operator_leader",
            "1 while this process holds the lease, else 0.",
            registry=self.registry,
        )
        self._decisions = Counter(
            "fairlead_operator_scaling_decisions_total",
            "Changes of spec.replicas by the autoscaler, by LLMDeployment (namespace/name) and direction (up, down).",
            ["llmdeployment", "direction"],
            registry=self.registry,
        )
        self._desired = Gauge(
            "fairlead_operator_desired_replicas",
            "Replicas that the autoscaler asks for, by LLMDeployment (namespace/name).",
            ["llmdeployment"],
            registry=self.registry,
        )
        self._wanted = Gauge(
            "fairlead_operator_wanted_replicas",
            "Replicas that the demand asks for by itself, before stabilisation and limits.",
            ["llmdeployment"],
            registry=self.registry,
        )
        for outcome in ReconcileOutcome:
            self._reconciliations.labels(outcome)
        ProcessCollector(namespace="fairlead_operator", registry=self.registry)

    def observe(self, outcome: ReconcileOutcome, seconds: float) -> None:
        """A reconciliation has ended."""
        self._reconciliations.labels(outcome).inc()
        self._duration.observe(seconds)

    def count_error(self) -> None:
        """A reconciliation has failed."""
        self._errors.inc()

    def watch_queue(self, num_waiting: Callable[[], int]) -> None:
        """Where the length of the queue is read from."""
        self._waiting.set_function(num_waiting)

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

    def set_leader(self, is_leader: bool) -> None:
        """Whether we hold the lease."""
        self._leader.set(1 if is_leader else 0)
