"""LLMDeployment.from_body: defaults, conversions, and errors that name the field."""

from datetime import UTC, datetime
from typing import Any

import pytest

from fairlead.api.llmdeployment import InvalidSpec, LLMDeployment, RoutingPolicy, ScalingMode
from fairlead_common.models.choices import Dtype


def body(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {
            "name": "dinghy",
            "namespace": "default",
            "uid": "u-1",
            "generation": 4,
            "creationTimestamp": "2026-01-01T12:00:00Z",
        },
        "spec": {"model": {"source": "demo://dinghy"}} | spec,
    }


def test_a_minimal_object_has_all_defaults() -> None:
    deployment = LLMDeployment.from_body(body())
    spec = deployment.spec
    assert spec.model.served_name == "dinghy"
    assert spec.model.aliases == ()
    assert spec.engine.dtype is Dtype.AUTO
    assert spec.engine.enable_prefix_caching is True
    assert spec.engine.kv_cache.memory is None
    assert spec.replicas is None
    assert spec.autoscaling is None
    assert spec.routing.policy is RoutingPolicy.PREDICTED_TTFT
    assert (spec.routing.max_queue_time, spec.routing.cold_start_timeout) == (30.0, 600.0)
    assert (spec.rollout.max_surge, spec.rollout.max_unavailable) == (1, 0)
    assert spec.drain.timeout == 900.0
    assert deployment.status == {}


def test_metadata_is_decoded() -> None:
    metadata = LLMDeployment.from_body(body()).metadata
    assert (metadata.name, metadata.namespace, metadata.uid, metadata.generation) == ("dinghy", "default", "u-1", 4)
    assert metadata.creation_timestamp == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert metadata.deletion_timestamp is None


def test_every_kind_of_value_is_converted() -> None:
    spec = LLMDeployment.from_body(
        body(
            model={"source": "pvc://models/qwen", "servedName": "Qwen3-0.6B", "aliases": ["qwen", "small"]},
            engine={
                "dtype": "bfloat16",
                "maxModelLen": 4096,
                "kvCache": {"blockSize": 32, "memory": "2Gi"},
                "enablePrefixCaching": False,
                "extraArgs": ["--seed", "7"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
            },
            resources={"requests": {"cpu": 2, "memory": "4Gi"}, "gpus": 1},
            replicas=3,
            autoscaling={"mode": "Fairlead", "maxReplicas": 8, "targets": {"timeToFirstToken": "500ms"}},
            routing={"policy": "RoundRobin", "maxQueueTime": "1m"},
            drain={"timeout": "90s"},
            template={"metadata": {"labels": {"team": "a"}}, "spec": {"nodeSelector": {"x": "y"}}},
        )
    ).spec
    assert spec.model.served_name == "Qwen3-0.6B"
    assert spec.model.aliases == ("qwen", "small")
    assert spec.engine.dtype is Dtype.BFLOAT16
    assert spec.engine.kv_cache.memory == 2 * 2**30
    assert spec.engine.extra_args == ("--seed", "7")
    assert spec.engine.env[1].value_from == {"fieldRef": {"fieldPath": "x"}}
    assert spec.resources.requests == {"cpu": "2", "memory": "4Gi"}
    assert spec.autoscaling is not None
    assert spec.autoscaling.mode is ScalingMode.FAIRLEAD
    assert spec.autoscaling.targets is not None
    assert spec.autoscaling.targets.time_to_first_token == 0.5
    assert spec.routing.policy is RoutingPolicy.ROUND_ROBIN
    assert spec.drain.timeout == 90.0
    assert spec.template.metadata.labels == {"team": "a"}
    assert spec.template.spec == {"nodeSelector": {"x": "y"}}


@pytest.mark.parametrize(
    ("spec", "replicas"),
    [
        ({}, 1),
        ({"replicas": 0}, 0),
        ({"replicas": 5, "autoscaling": {"minReplicas": 2, "maxReplicas": 8}}, 5),
        ({"autoscaling": {"minReplicas": 2, "maxReplicas": 8}}, 2),
        ({"autoscaling": {"minReplicas": 0, "maxReplicas": 8}}, 1),
        ({"autoscaling": {"mode": "External"}}, 1),
    ],
)
def test_the_count_defaults_to_the_minimum_but_never_to_nothing(spec: dict[str, Any], replicas: int) -> None:
    assert LLMDeployment.from_body(body(**spec)).desired_replicas == replicas


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"model": {}}, "spec.model.source"),
        ({"model": {"source": 7}}, "spec.model.source"),
        ({"model": {"source": "demo://x", "servedName": "with space"}}, "spec.model.servedName"),
        ({"model": {"source": "demo://x", "aliases": ["a", "a"]}}, "spec.model.aliases[1]"),
        ({"replicas": -1}, "spec.replicas"),
        ({"replicas": "2"}, "spec.replicas"),
        ({"replicas": True}, "spec.replicas"),
        ({"engine": {"dtype": "float64"}}, "spec.engine.dtype"),
        ({"engine": {"quantization": "int3"}}, "spec.engine.quantization"),
        ({"engine": {"maxNumSeqs": 0}}, "spec.engine.maxNumSeqs"),
        ({"engine": {"kvCache": {"dtype": "fp4"}}}, "spec.engine.kvCache.dtype"),
        ({"engine": {"speculative": {"method": "magic"}}}, "spec.engine.speculative.method"),
        ({"engine": {"speculative": {"numTokens": 3}}}, "spec.engine.speculative.method"),
        ({"engine": {"speculative": {"method": "ngram", "numTokens": 0}}}, "spec.engine.speculative.numTokens"),
        ({"engine": {"kvCache": {"memory": "much"}}}, "spec.engine.kvCache.memory"),
        ({"engine": {"kvCache": {"memory": -1}}}, "spec.engine.kvCache.memory"),
        ({"engine": {"enablePrefixCaching": "yes"}}, "spec.engine.enablePrefixCaching"),
        ({"engine": {"maxModelLen": 2**31}}, "spec.engine.maxModelLen"),
        ({"template": {"metadata": {"labels": {"a": 1}}}}, "spec.template.metadata.labels.a"),
        ({"resources": {"limits": {f"r{number}": 1 for number in range(33)}}}, "spec.resources.limits"),
        ({"engine": {"env": [{"name": "A"}, {"name": "A"}]}}, "spec.engine.env[1]"),
        ({"routing": {"policy": "Random"}}, "spec.routing.policy"),
        ({"routing": {"maxQueueTime": "30"}}, "spec.routing.maxQueueTime"),
        ({"routing": []}, "spec.routing"),
        ({"resources": {"requests": {"cpu": "lots"}}}, "spec.resources.requests.cpu"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_path(spec: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidSpec) as raised:
        LLMDeployment.from_body(body(**spec))
    assert raised.value.path == path
    assert str(raised.value).startswith(path)


def test_an_object_without_spec_says_which_field_is_missing() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.model: Required value"):
        LLMDeployment.from_body({"metadata": body()["metadata"]})


def test_null_means_absent() -> None:
    assert LLMDeployment.from_body(body(replicas=None, autoscaling=None)).spec.replicas is None


def test_fields_of_newer_versions_do_not_break_older_readers() -> None:
    assert LLMDeployment.from_body(body(fromTheFuture={"x": 1})).spec.replicas is None


@pytest.mark.parametrize("zone", ["Europe/Berlyn", "Europe", "berlin/europe"])
def test_a_time_zone_that_there_is_none_of_is_refused_by_name(zone: str) -> None:
    schedules = [{"name": "a", "minReplicas": 1}, {"name": "b", "minReplicas": 1, "timeZone": zone}]
    with pytest.raises(InvalidSpec, match=f"schedules.1..timeZone: there is no time zone '{zone}'"):
        LLMDeployment.from_body(body(autoscaling={"maxReplicas": 2, "schedules": schedules}))
