"""Desired: whatever a user writes ends in children or in an obstacle with a sentence, never in an exception."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from api_schemas import spec_schema
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.conditions import Reason
from fairlead.api.llmdeployment import InvalidSpec, LLMDeployment
from fairlead.api.pod_spec import MERGE_KEYS
from fairlead.controller.desired import desired
from fairlead.controller.observe import Observed
from fairlead.kube.client import JsonObject
from fairlead.manifests.source import downloaded_sources
from fairlead.operator_settings import OperatorSettings

SETTINGS = OperatorSettings()
KNOWN = "hf://HuggingFaceTB/SmolLM2-135M-Instruct@main"
"""In the catalogue, so that memory is reckoned with."""
SOURCES = [
    "demo://dinghy",
    "pvc://models/a",
    "pvc://models",
    "file:///srv/a",
    "hf://org/name",
    KNOWN,
    "nonsense",
    "demo://",
]
FIELDS = ["name", "env", "resources", "limits", "cpu", "ports", "volumeMounts", "secretKeyRef", "image", "x"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.floats(-1, 2) | st.sampled_from(["engine", "x", ""]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=8,
)
POD_FIELDS = [
    *MERGE_KEYS,
    "containers",
    "volumes",
    "securityContext",
    "tolerations",
    "nodeSelector",
    "hostNetwork",
    "terminationGracePeriodSeconds",
]


def body(spec: Any, name: str = "dinghy") -> JsonObject:
    metadata = {"name": name, "namespace": "ns", "uid": "u", "generation": 1}
    return {"metadata": metadata | {"creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec}


def fitting(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema of ours allows."""
    if schema.get("x-kubernetes-int-or-string"):
        return st.sampled_from(["1Gi", "500m", 2])
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return st.dictionaries(st.sampled_from(POD_FIELDS), JSON, max_size=2)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "object" if "properties" in schema:
            required = {key: fitting(schema["properties"][key]) for key in schema.get("required", [])}
            others = {key: fitting(child) for key, child in schema["properties"].items() if key not in required}
            return st.fixed_dictionaries(required, optional=others)
        case "object":
            return st.dictionaries(st.sampled_from(["cpu", "memory"]), fitting(schema["additionalProperties"]))
        case "array":
            unique = json.dumps if schema.get("x-kubernetes-list-type") == "set" else None
            if schema.get("x-kubernetes-list-type") == "map":
                return st.lists(fitting(schema["items"]), max_size=2, unique_by=lambda item: item["name"])
            return st.lists(fitting(schema["items"]), max_size=2, unique_by=unique)
        case "boolean":
            return st.booleans()
        case "integer":
            least = schema.get("minimum", -3)
            return st.integers(least, min(schema.get("maximum", 50), least + 50))
    if "ms|s|m|h|d" in schema.get("pattern", ""):
        return st.sampled_from(["500ms", "30s", "1h30m", "0s"])
    if schema.get("maxLength") == 1024:
        return st.sampled_from(SOURCES)
    texts = ("UTC", "Europe/Berlin") if schema.get("maxLength") == 64 else ("a", "b1", "gpu", "X", "2x2", "07:30")
    return st.sampled_from([text for text in texts if re.search(schema.get("pattern", ""), text)])


SPECS = fitting(spec_schema())


@settings(deadline=None, max_examples=50)
@given(SPECS)
def test_what_the_schema_allows_is_built_or_refused_with_a_sentence(spec: dict[str, Any]) -> None:
    wanted = desired(Observed(body=body(spec)), SETTINGS)
    assert wanted.deployment is not None
    if wanted.obstacle is not None:
        assert wanted.children == ()
        assert wanted.obstacle.reason in set(Reason)
        assert len(wanted.obstacle.message) > 20
    else:
        config_maps = ["ConfigMap"] * (1 + bool(downloaded_sources(wanted.deployment)))
        assert [child["kind"] for child in wanted.children] == [*config_maps, "Deployment", "Service"]
        assert json.loads(json.dumps(wanted.children)) == list(wanted.children)
        assert wanted.children[-2]["spec"]["replicas"] == wanted.deployment.desired_replicas


@settings(deadline=None, max_examples=50)
@given(SPECS, st.data())
def test_a_spec_with_anything_anywhere_is_never_an_exception(spec: dict[str, Any], data: st.DataObject) -> None:
    """As an API server without validation might have stored it."""
    place: Any = spec
    while isinstance(place, dict) and place:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(JSON)
            break
        place = place[key]
    wanted = desired(Observed(body=body(spec)), SETTINGS)
    assert wanted.children or wanted.obstacle


@settings(deadline=None, max_examples=50)
@given(JSON)
def test_no_spec_at_all_makes_it_fail(spec: Any) -> None:
    assert desired(Observed(body=body(spec)), SETTINGS).obstacle is not None


def test_a_rule_broken_behind_an_old_api_server_is_an_invalid_spec() -> None:
    spec = {"model": {"source": "demo://dinghy"}, "autoscaling": {"minReplicas": 3, "maxReplicas": 1}}
    wanted = desired(Observed(body=body(spec)), SETTINGS)
    assert wanted.obstacle is not None
    assert wanted.obstacle.reason is Reason.INVALID_SPEC
    assert wanted.obstacle.message == "autoscaling.minReplicas must not be above autoscaling.maxReplicas"


def test_a_name_that_is_too_long_is_an_invalid_spec() -> None:
    wanted = desired(Observed(body=body({"model": {"source": "demo://dinghy"}}, "a" * 41)), SETTINGS)
    assert wanted.obstacle is not None
    assert "must not be longer than 40 characters" in wanted.obstacle.message


def test_whole_numbers_may_be_written_with_a_point() -> None:
    spec = {"model": {"source": "demo://dinghy"}, "replicas": 2.0}
    replicas = LLMDeployment.from_body(body(spec)).spec.replicas
    assert replicas == 2
    assert isinstance(replicas, int)


CONTAINER = {"name": "engine"}
WRONG = {
    "containers": "x",
    "containers[0]": ["x"],
    "containers[0].name": [{"image": "x"}],
    "containers[1].name": [CONTAINER, {"name": ["x"]}],
    "containers[0].env": [CONTAINER | {"env": {"A": "b"}}],
    "containers[0].env[0].name": [CONTAINER | {"env": [{"value": "b"}]}],
    "containers[0].ports[0].containerPort": [CONTAINER | {"ports": [{"containerPort": "http"}]}],
    "containers[0].volumeMounts[0]": [CONTAINER | {"volumeMounts": [1]}],
    "containers[0].resources": [CONTAINER | {"resources": "x"}],
    "containers[0].resources.limits": [CONTAINER | {"resources": {"limits": ["cpu"]}}],
    "containers[0].resources.requests.cpu": [CONTAINER | {"resources": {"requests": {"cpu": {"x": 1}}}}],
}


@pytest.mark.parametrize("source", ["demo://dinghy", KNOWN])
@pytest.mark.parametrize("field", [*WRONG, "initContainers", "volumes", "volumes[0].name", "imagePullSecrets[0]"])
def test_a_template_that_is_no_pod_is_an_invalid_spec_that_names_the_field(field: str, source: str) -> None:
    top = field.partition("[")[0]
    values = {"initContainers": {"name": "x"}, "volumes[0].name": [{"emptyDir": {}}], "imagePullSecrets[0]": ["x"]}
    value = WRONG.get(field, values.get(field, 5))
    spec = {"model": {"source": source}, "template": {"spec": {top: value}}}
    wanted = desired(Observed(body=body(spec)), SETTINGS)
    assert wanted.obstacle is not None and wanted.obstacle.reason is Reason.INVALID_SPEC
    assert wanted.obstacle.message.startswith(f"template.spec.{field} must be ")


@pytest.mark.parametrize("raw", ["template", "valueFrom"])
@pytest.mark.parametrize("depth", [100, 5000])
def test_what_is_nested_without_end_is_an_invalid_spec(raw: str, depth: int) -> None:
    deep: Any = {}
    for _ in range(depth):
        deep = {"a": [deep]}
    variable = {"name": "A", "valueFrom": deep}
    rest = {"template": {"spec": deep}} if raw == "template" else {"engine": {"env": [variable]}}
    with pytest.raises(InvalidSpec, match=r"nested more than 64 deep"):
        LLMDeployment.from_body(body({"model": {"source": "demo://dinghy"}, **rest}))


@settings(deadline=None, max_examples=80)
@given(st.dictionaries(st.sampled_from(POD_FIELDS), JSON, max_size=3), st.sampled_from(["demo://dinghy", KNOWN]))
def test_any_template_is_laid_over_or_refused_by_name(template: dict[str, Any], source: str) -> None:
    wanted = desired(Observed(body=body({"model": {"source": source}, "template": {"spec": template}})), SETTINGS)
    assert wanted.children or wanted.obstacle
    if wanted.obstacle is not None and wanted.obstacle.reason is Reason.INVALID_SPEC:
        assert "template.spec" in wanted.obstacle.message
