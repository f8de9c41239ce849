"""What the operator sees of every LLMDeployment, as metrics: replicas by stage, bounds, targets and conditions.

Read from what kopf's indexes hold at the moment of the scrape, so that the figures cost nothing between scrapes and
vanish with what they describe. Only the leader watches, so only the leader has any. Asks nobody, decides nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.api.durations import parse_duration
from fairlead.api.llmdeployment import Autoscaling, InvalidSpec, LLMDeployment, ScalingMode
from fairlead.autoscaler.policy import fewest_replicas, most_replicas, targets_of
from fairlead.controller.observe import Cluster, Observed
from fairlead.controller.pod_diagnosis import Stage

_HELP: dict[str, str] = {
    "spec_replicas": "Replicas that spec.replicas asks for, whoever wrote it.",
    "pods": "Engine pods by stage: ready, starting, failing, draining or finished.",
    "min_replicas": "Least replicas that the autoscaler may ask for.",
    "max_replicas": "Most replicas that the autoscaler may ask for.",
    "queue_depth_target": "Waiting requests per replica that the fleet is held to.",
    "time_to_first_token_target_seconds": "Time to first token that the fleet is held to, at that percentile.",
    "time_to_first_token_seconds": "Time to first token at the target's percentile, as the autoscaler last said it; "
    "absent while no stream has told one lately.",
    "cold_start_seconds": "Mean of what pods have taken from creation to ready.",
    "condition": "The conditions of the status: 1 for the status and reason that each type has.",
}
_LABELS: dict[str, tuple[str, ...]] = {
    "pods": ("stage",),
    "time_to_first_token_target_seconds": ("percentile",),
    "time_to_first_token_seconds": ("percentile",),
    "condition": ("type", "status", "reason"),
}
"""Beside `llmdeployment`, which all of them have."""


class FleetFigures(Collector):
    """Every metric is labelled `llmdeployment` (namespace/name)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def collect(self) -> Iterable[Metric]:
        """All figures of all LLMDeployments that are known."""
        families = {
            name: GaugeMetricFamily(f"fairlead_operator_{name}", text, labels=["llmdeployment", *_LABELS.get(name, ())])
            for name, text in _HELP.items()
        }
        for key in sorted(self._cluster.keys()):
            observed = self._cluster.last_seen(key)
            if observed is not None:
                for name, labels, value in figures(observed):
                    families[name].add_metric(["/".join(key), *labels], value)
        return families.values()


Figure = tuple[str, tuple[str, ...], float]
"""Name without prefix, values of the labels beside `llmdeployment`, value."""


def figures(observed: Observed) -> Iterable[Figure]:
    """Everything there is to say about one LLMDeployment. One whose spec cannot be understood has no targets."""
    stages = Counter(diagnosis.stage for diagnosis in observed.diagnoses)
    yield from (("pods", (str(stage),), float(stages[stage])) for stage in Stage)
    status = observed.body.get("status") or {}
    for condition in status.get("conditions") or []:
        yield "condition", tuple(str(condition.get(field, "")) for field in ("type", "status", "reason")), 1.0
    try:
        deployment = LLMDeployment.from_body(observed.body)
    except InvalidSpec:
        return
    yield "spec_replicas", (), float(deployment.desired_replicas)
    autoscaling = deployment.spec.autoscaling
    if autoscaling is not None and autoscaling.mode is ScalingMode.FAIRLEAD:
        yield from _scaling_figures(autoscaling, status.get("scaling") or {})


def _scaling_figures(autoscaling: Autoscaling, scaling: Mapping[str, Any]) -> Iterable[Figure]:
    """`scaling`: `status.scaling`, where the autoscaler says what its decision rests on."""
    yield "min_replicas", (), float(fewest_replicas(autoscaling))
    yield "max_replicas", (), float(most_replicas(autoscaling))
    targets = targets_of(autoscaling)
    percentile = (str(targets.percentile),)
    if targets.queue_depth is not None:
        yield "queue_depth_target", (), float(targets.queue_depth)
    if targets.time_to_first_token is not None:
        yield "time_to_first_token_target_seconds", percentile, targets.time_to_first_token
    yield from _told("time_to_first_token_seconds", percentile, (scaling.get("signals") or {}).get("ttft"))
    yield from _told("cold_start_seconds", (), scaling.get("coldStart"))


def _told(name: str, labels: tuple[str, ...], duration: Any) -> Iterable[Figure]:
    """A duration of the status, if it can be read."""
    try:
        yield name, labels, parse_duration(duration)
    except ValueError:
        return
