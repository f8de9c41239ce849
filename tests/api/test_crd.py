"""The generated CRD: complete, documented, structural, and its rules say what to do."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.api.crd import crd, object_schema, rule_violations, to_yaml
from fairlead.api.structural import compile_rules, validate

ROOT = Path(__file__).parents[2]


def walk(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, schema
    for name, child in (schema.get("properties") or {}).items():
        yield from walk(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            yield from walk(schema[key], f"{path}[]")


def body(name: str = "dinghy", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"model": {"source": "demo://dinghy"}} | spec}


def test_the_file_is_the_generated_text() -> None:
    assert (ROOT / "crds" / "llmdeployments.fairlead.dev.yaml").read_text() == to_yaml()
    assert yaml.safe_load(to_yaml()) == crd()


def test_every_field_has_a_description() -> None:
    bare = [
        path
        for path, schema in walk(object_schema())
        if path and path != ".metadata" and not path.endswith("]") and not schema.get("description")
    ]
    assert bare == []


def test_every_node_has_a_type_as_structural_schemas_need() -> None:
    untyped = [
        path
        for path, schema in walk(object_schema())
        if "type" not in schema and not schema.get("x-kubernetes-int-or-string")
    ]
    assert untyped == []


def test_all_rules_compile() -> None:
    compile_rules(object_schema())


def test_names_columns_and_subresources() -> None:
    spec = crd()["spec"]
    (version,) = spec["versions"]
    assert spec["names"]["shortNames"] == ["llm"]
    assert spec["names"]["categories"] == ["all"]
    assert [column["name"] for column in version["additionalPrinterColumns"]] == [
        "Model", "Ready", "Desired", "Queue", "TTFT-P90", "Reason", "Age",
    ]  # fmt: skip
    assert version["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }


def test_nothing_is_defaulted_by_the_api_server() -> None:
    assert [path for path, schema in walk(object_schema()) if "default" in schema] == []


def test_the_examples_in_the_repository_are_valid() -> None:
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document and document.get("kind") == "LLMDeployment":
                assert validate(object_schema(), document) == [], path
                assert rule_violations(document) == [], path


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
            "autoscaling.minReplicas must not be above autoscaling.maxReplicas",
        ),
        ({"autoscaling": {"minReplicas": 1}}, "autoscaling.maxReplicas must be set"),
        ({"autoscaling": {"mode": "External", "maxReplicas": 2}}, "autoscaling.mode External excludes"),
        ({"autoscaling": {"mode": "External", "targets": {"queueDepth": 2}}}, "autoscaling.mode External excludes"),
        ({"autoscaling": {"mode": "External", "scaleUp": {"maxStep": 2}}}, "autoscaling.mode External excludes"),
        ({"autoscaling": {"maxReplicas": 2, "scaleToZeroAfter": "5m"}}, "needs autoscaling.minReplicas: 0"),
        (
            {"autoscaling": {"minReplicas": 0, "maxReplicas": 2, "scaleToZeroAfter": "0s"}},
            "autoscaling.scaleToZeroAfter must be more than 0",
        ),
        (
            {"autoscaling": {"maxReplicas": 2, "targets": {"queueDepth": 2, "tolerance": 20}}},
            "autoscaling.targets.tolerance needs autoscaling.targets.timeToFirstToken",
        ),
        ({"resources": {"profile": "gpu", "gpus": 1}}, "resources.profile excludes"),
        ({"resources": {"gpus": 2}}, "resources.gpus must not be above 1"),
        ({"rollout": {"maxSurge": 0}}, "must not both be 0"),
        ({"rollout": {"maxSurge": 0, "maxUnavailable": 0}}, "must not both be 0"),
        ({"engine": {"maxNumSeqs": 64, "maxNumBatchedTokens": 32}}, "engine.maxNumSeqs must not be above"),
        ({"engine": {"env": [{"name": "A", "value": "1", "valueFrom": {}}]}}, "either a value or a valueFrom"),
        ({"model": {"source": "demo://a", "servedName": "default/later"}}, "model.aliases must not contain '/'"),
        ({"model": {"source": "demo://a", "aliases": ["b", "other/b"]}}, "NAMESPACE/NAME is the name that every"),
        ({"model": {"source": "dinghy"}}, "model.source must look like demo://NAME"),
        ({"model": {"source": "hf://name-only"}}, "model.source must look like"),
        ({"model": {"source": "file://relative"}}, "model.source must look like"),
        ({"model": {"source": "pvc://models/../secrets"}}, "must not contain '..'"),
    ],
)
def test_a_broken_rule_says_what_to_do(spec: dict[str, Any], sentence: str) -> None:
    assert validate(object_schema(), body(**spec)) == []
    (broken,) = rule_violations(body(**spec))
    assert sentence in broken.rule_message
    assert broken.message.endswith(broken.rule_message)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"autoscaling": {"mode": "External"}},
        {"autoscaling": {"minReplicas": 2, "maxReplicas": 2}},
        {"autoscaling": {"minReplicas": 0, "maxReplicas": 2, "scaleToZeroAfter": "5m"}},
        {
            "autoscaling": {
                "minReplicas": 0,
                "maxReplicas": 2,
                "scaleToZeroAfter": "500ms",
                "targets": {"timeToFirstToken": "300ms", "tolerance": 0},
                "scaleUp": {"stabilizationWindow": "0s", "maxStep": 1, "period": "5s"},
                "scaleDown": {"stabilizationWindow": "5s", "maxStep": 1, "period": "1s"},
            }
        },
        {"resources": {"gpus": 1, "limits": {"memory": "1Gi"}}},
        {"rollout": {"maxSurge": 0, "maxUnavailable": 1}},
        *(
            {"model": {"source": source}}
            for source in (
                "demo://dinghy", "file:///models/a", "pvc://claim", "pvc://claim/a/b", "hf://org/name@main",
                "s3://bucket/a/b", "oci://registry/image:tag", "pvc://claim/..hidden/model..v2",
            )
        ),
    ],
)  # fmt: skip
def test_what_is_meant_to_be_possible_breaks_no_rule(spec: dict[str, Any]) -> None:
    assert rule_violations(body(**spec)) == []


@pytest.mark.parametrize("name", ["a" * 41, "1st", "with.dot", "end-"])
def test_names_that_children_could_not_have_are_refused(name: str) -> None:
    broken = rule_violations(body(name))
    assert broken
    assert all(violation.rule_message.startswith("metadata.name must") for violation in broken)


def test_a_name_of_forty_characters_is_possible() -> None:
    assert rule_violations(body("a" * 40)) == []
