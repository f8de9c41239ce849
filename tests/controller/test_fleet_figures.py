"""What the operator exports of every LLMDeployment, from what it has last seen."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fairlead.controller.observe import Cluster
from fairlead.controller.operator_metrics import FleetFigures
from fairlead.kube.client import JsonObject
from fairlead_common.wire.downloads import DownloadProgress, DownloadStage
from fairlead_testing.fleet_objects import stored

KEY = ("default", "dinghy")
NAME = {"llmdeployment": "default/dinghy"}


def body(spec: dict[str, Any], status: dict[str, Any] | None = None) -> JsonObject:
    return stored(namespace="default", **spec) | {"status": status or {}}


def pod(name: str, *, ready: bool, going: bool = False) -> JsonObject:
    metadata = {"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    if going:
        metadata["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"metadata": metadata, "spec": {}, "status": {"phase": "Running", "conditions": conditions}}


def scrape(
    deployment: JsonObject | None, *pods: JsonObject, downloads: dict[str, DownloadProgress] | None = None
) -> CollectorRegistry:
    cluster, registry = Cluster(None, downloads=lambda: downloads or {}), CollectorRegistry()
    deployments = {} if deployment is None else {KEY: [deployment]}
    cluster.bind({"llmdeployments": deployments, "children": {}, "pods": {KEY: list(pods)}, "name_claims": {}})
    registry.register(FleetFigures(cluster))
    return registry


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"fairlead_operator_{name}", NAME | labels)


def test_pods_are_counted_by_stage_and_stages_without_any_are_zero() -> None:
    pods = (pod("a", ready=True), pod("b", ready=True), pod("c", ready=False), pod("d", ready=True, going=True))
    registry = scrape(body({"replicas": 3}), *pods)
    stages = ("ready", "starting", "failing", "draining", "finished")
    assert [value(registry, "pods", stage=stage) for stage in stages] == [2, 1, 0, 1, 0]
    assert value(registry, "spec_replicas") == 3


def test_targets_and_what_they_are_compared_with_have_the_same_labels() -> None:
    autoscaling = {"minReplicas": 0, "maxReplicas": 4, "targets": {"timeToFirstToken": "500ms", "percentile": 95}}
    autoscaling["targets"] |= {"timePerOutputToken": "50ms"}
    told = {"scaling": {"signals": {"ttft": "1.3s", "tpot": "62ms"}, "coldStart": "42s"}}
    registry = scrape(body({"autoscaling": autoscaling}, told))
    assert value(registry, "time_to_first_token_target_seconds", percentile="95") == 0.5
    assert value(registry, "time_to_first_token_seconds", percentile="95") == 1.3
    assert value(registry, "time_per_output_token_target_seconds", percentile="95") == 0.05
    assert value(registry, "time_per_output_token_seconds", percentile="95") == 0.062
    assert value(registry, "cold_start_seconds") == 42
    assert (value(registry, "min_replicas"), value(registry, "max_replicas")) == (0, 4)
    assert value(registry, "queue_depth_target") is None


def test_without_any_target_the_default_queue_depth_is_told() -> None:
    assert value(scrape(body({"autoscaling": {"maxReplicas": 4}})), "queue_depth_target") == 4


@pytest.mark.parametrize(
    "told", [{}, {"scaling": {}}, {"scaling": {"signals": {"queue": 1}}}, {"scaling": {"coldStart": "?"}}]
)
def test_what_the_autoscaler_has_not_said_is_absent(told: dict[str, Any]) -> None:
    autoscaling = {"maxReplicas": 4, "targets": {"timeToFirstToken": "500ms"}}
    registry = scrape(body({"autoscaling": autoscaling}, told))
    assert value(registry, "time_to_first_token_seconds", percentile="90") is None
    assert value(registry, "cold_start_seconds") is None


@pytest.mark.parametrize("autoscaling", [None, {"mode": "External"}])
def test_who_is_not_scaled_by_us_has_no_bounds(autoscaling: dict[str, Any] | None) -> None:
    registry = scrape(body({"replicas": 2, "autoscaling": autoscaling}))
    assert value(registry, "max_replicas") is None
    assert value(registry, "spec_replicas") == 2


def test_conditions_are_told_with_status_and_reason() -> None:
    conditions = [
        {"type": "Ready", "status": "True", "reason": "ReplicasReady"},
        {"type": "Degraded", "status": "False", "reason": "AsExpected"},
    ]
    registry = scrape(body({}, {"conditions": conditions}))
    assert value(registry, "condition", type="Ready", status="True", reason="ReplicasReady") == 1
    assert value(registry, "condition", type="Degraded", status="False", reason="AsExpected") == 1
    assert value(registry, "condition", type="Degraded", status="True", reason="AsExpected") is None


def test_a_spec_that_cannot_be_understood_still_has_pods_and_conditions() -> None:
    conditions = [{"type": "Degraded", "status": "True", "reason": "InvalidSpec"}]
    registry = scrape(body({"replicas": "many"}, {"conditions": conditions}), pod("a", ready=True))
    assert value(registry, "pods", stage="ready") == 1
    assert value(registry, "condition", type="Degraded", status="True", reason="InvalidSpec") == 1
    assert value(registry, "spec_replicas") is None


def test_what_is_gone_and_an_operator_that_watches_nothing_tell_nothing() -> None:
    assert value(scrape(None), "spec_replicas") is None
    registry = CollectorRegistry()
    registry.register(FleetFigures(Cluster(None)))
    assert [sample for family in registry.collect() for sample in family.samples] == []


def test_the_stages_of_a_start_and_what_is_downloaded_are_told() -> None:
    progress = DownloadProgress(source="hf://a/b", stage=DownloadStage.DOWNLOADING, bytes=7, total_bytes=20)
    told = {"startup": {"pod": "a", "schedule": "0ms", "image": "3s", "load": "12s", "total": "15s"}}
    registry = scrape(body({}, told), pod("b", ready=False), downloads={"b": progress})
    assert [value(registry, "startup_seconds", stage=stage) for stage in ("schedule", "image", "load")] == [0, 3, 12]
    assert value(registry, "startup_seconds", stage="download") is None
    assert value(registry, "download_bytes", pod="b") == 7
    assert value(registry, "download_total_bytes", pod="b") == 20
