"""Desired: whatever a user writes ends in children or in an obstacle with a sentence, never in an exception."""

import json
import re
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.conditions import Reason
from fairlead.api.llmdeployment import LLMDeployment, spec_schema
from fairlead.controller.desired import desired
from fairlead.controller.observe import Observed
from fairlead.kube.client import JsonObject
from fairlead.manifests.adapter_folders import downloaded_sources
from fairlead.operator_settings import OperatorSettings

SETTINGS = OperatorSettings()
SOURCES = ["demo://dinghy", "pvc://models/a", "pvc://models", "file:///srv/a", "hf://org/name", "nonsense", "demo://"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "env", "x"]), inner, max_size=2)
    ),
    max_leaves=5,
)
POD_FIELDS = ["containers", "volumes", "tolerations", "nodeSelector", "hostNetwork", "terminationGracePeriodSeconds"]


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
    return st.sampled_from(
        [text for text in ("a", "b1", "gpu", "X", "2x2") if re.search(schema.get("pattern", ""), text)]
    )


SPECS = fitting(spec_schema())


@settings(deadline=None, max_examples=150)
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


@settings(deadline=None, max_examples=150)
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


@settings(deadline=None, max_examples=100)
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
