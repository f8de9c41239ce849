"""The operator's metrics, all in one place; served at /metrics by `health`."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from fairlead.controller.reconcile import ReconcileOutcome

DURATION_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


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
        for outcome in ReconcileOutcome:
            self._reconciliations.labels(outcome)

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

    def set_leader(self, is_leader: bool) -> None:
        """Whether we hold the lease."""
        self._leader.set(1 if is_leader else 0)
