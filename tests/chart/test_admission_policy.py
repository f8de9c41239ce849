"""What LLMDeployments may ask for, as the chart tells it to the operator and to the API server."""

from typing import Any

import pytest
import yaml

pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install -r requirements/helm.txt")

import helm

from fairlead.api.admission_policy import EXEMPT, LIMITS, AdmissionPolicy
from fairlead.operator_settings import OperatorSettings

ON = {"enabled": True}


def rendered(policy: dict[str, Any], kube_version: str = "1.34.0", **values: Any) -> dict[str, helm.Manifest]:
    """Kind → the one object of it; the operator's settings under `settings`."""
    made = helm.manifests({"admissionPolicy": policy, **values}, kube_version=kube_version)
    found = {each["kind"]: each for each in made if each["kind"].startswith("ValidatingAdmissionPolicy")}
    (config,) = (
        each for each in made if each["kind"] == "ConfigMap" and each["metadata"]["name"] == "fairlead-operator"
    )
    return {**found, "settings": yaml.safe_load(config["data"]["operator.yaml"])}


def settings(made: dict[str, helm.Manifest]) -> OperatorSettings:
    return OperatorSettings.from_mapping(made["settings"])


def test_it_is_off_unless_it_is_turned_on() -> None:
    made = rendered({})
    assert set(made) == {"settings"}
    assert settings(made).admission_policy is None


def test_one_value_turns_on_both_with_the_programs_own_defaults() -> None:
    made = rendered(ON)
    assert settings(made).admission_policy == AdmissionPolicy()
    policy, binding = made["ValidatingAdmissionPolicy"], made["ValidatingAdmissionPolicyBinding"]
    assert binding["spec"]["policyName"] == policy["metadata"]["name"] == binding["metadata"]["name"]
    assert binding["spec"]["validationActions"] == ["Deny"]
    assert policy["spec"]["failurePolicy"] == "Fail"


@pytest.mark.parametrize(
    ("wanted", "version", "made"),
    [("auto", "1.29.9", False), ("auto", "1.30.0", True), ("always", "1.29.9", True), ("never", "1.34.0", False)],
)
def test_the_api_server_refuses_where_it_can(wanted: str, version: str, made: bool) -> None:
    found = rendered({**ON, "validatingAdmissionPolicy": wanted}, version)
    assert ("ValidatingAdmissionPolicy" in found) is made
    assert settings(found).admission_policy is not None


def test_every_limit_reaches_both() -> None:
    given = {name: ["a*"] for name in (EXEMPT, *LIMITS) if name not in ("nodeCache", "placement")}
    given |= {"images": ["a/"], "sources": ["hf://a/"], "arguments": ["--a"], "nodeCache": True, "placement": True}
    made = rendered({**ON, **given})
    assert made["settings"]["admissionPolicy"] == given
    variables = {each["name"]: each["expression"] for each in made["ValidatingAdmissionPolicy"]["spec"]["variables"]}
    assert {name: yaml.safe_load(variables[name]) for name in LIMITS} == {name: given[name] for name in LIMITS}
    (_, exempt) = made["ValidatingAdmissionPolicy"]["spec"]["matchConditions"]
    assert '["a*"].exists(' in exempt["expression"]


def test_it_is_about_the_namespaces_that_are_served() -> None:
    selector = rendered(ON, watch={"namespaces": ["team-a", "team-b"]})["ValidatingAdmissionPolicyBinding"]["spec"]
    (chosen,) = selector["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert (chosen["key"], chosen["operator"]) == ("kubernetes.io/metadata.name", "In")
    assert sorted(chosen["values"]) == ["team-a", "team-b"]
    everywhere = rendered(ON, watch={"allNamespaces": True})["ValidatingAdmissionPolicyBinding"]["spec"]
    assert "matchResources" not in everywhere


def test_two_releases_have_a_policy_each() -> None:
    names = {
        each["metadata"]["name"]
        for namespace in ("one", "two")
        for each in helm.manifests({"admissionPolicy": ON}, namespace=namespace, kube_version="1.34.0")
        if each["kind"] == "ValidatingAdmissionPolicy"
    }
    assert len(names) == 2


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"images": ["*"]}, "images"),
        ({"sources": ["hf"]}, "sources"),
        ({"secrets": ["a*b"]}, "secrets"),
        ({"image": []}, "image"),
        ({"placement": "yes"}, "placement"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(helm.HelmError, match=named):
        rendered({**ON, **wrong})
