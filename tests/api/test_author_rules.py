"""What an admission policy refuses: each rule has cases, and the file of the chart is the table's."""

from pathlib import Path
from typing import Any

import generate_admission_policy
import pytest
from crd.author_cases import ALLOWED, ODD, POLICIES, POLICY, REFUSED, AuthorCase
from crd.cases import deployment

from fairlead.api.admission_policy import EXEMPT, LIMITS, AdmissionPolicy
from fairlead.api.author_rules import OUR_VOLUMES, RULES, refusals
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.api.schema import decode
from fairlead.manifests.children import children
from fairlead.operator_settings import OperatorSettings, SettingsError

CHART = Path(__file__).parents[2] / "charts" / "fairlead"
STORED = {"namespace": "default", "uid": "u", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}


def policy(name: str = "POLICY") -> AdmissionPolicy:
    return decode(AdmissionPolicy, POLICIES[name], strict=True)


def refused(body: dict[str, Any], name: str = "POLICY", namespace: str = "team-a") -> list[str]:
    stored = body | {"metadata": STORED | body["metadata"] | {"namespace": namespace}}
    LLMDeployment.from_body(stored)
    return refusals(policy(name), stored)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.field}-{case.refused}")
def test_what_gives_power_over_others_is_refused_by_its_field(case: AuthorCase) -> None:
    (sentence,) = refused(case.body, case.policy)
    assert sentence.startswith(f"spec.{case.field}: {case.refused}: ")
    assert "leave it out, or have an administrator" in sentence and "admissionPolicy." in sentence


@pytest.mark.parametrize("body", ALLOWED, ids=lambda body: str(body["spec"])[-60:])
def test_what_is_listed_is_taken(body: dict[str, Any]) -> None:
    assert refused(body) == []


@pytest.mark.parametrize("body", ODD, ids=lambda body: str(body["spec"])[-60:])
def test_what_is_no_pod_is_refused(body: dict[str, Any]) -> None:
    assert refused(body) != []


def test_all_that_is_refused_at_a_place_is_named() -> None:
    (sentence,) = refused(deployment(template={"spec": {"hostPID": True, "hostIPC": True}}))
    assert sentence.startswith("spec.template.spec: 'hostPID', 'hostIPC': ")


def test_every_rule_has_a_case() -> None:
    assert {case.field for case in REFUSED} == {rule.path for rule in RULES}


def test_every_setting_is_something_that_rules_go_by() -> None:
    assert {rule.setting for rule in RULES} - {""} == set(LIMITS)
    assert set(POLICY) == {EXEMPT, *LIMITS} - {"nodeCache"}


@pytest.mark.parametrize(
    ("namespace", "exempt"), [("platform-a", True), ("platform", False), ("team-platform-a", False)]
)
def test_an_exempt_namespace_may_ask_for_anything(namespace: str, exempt: bool) -> None:
    assert (refused(REFUSED[0].body, namespace=namespace) == []) is exempt


def test_the_volumes_that_cannot_be_replaced_are_those_that_pods_have() -> None:
    spec = {
        "model": {"source": "pvc://models/a"},
        "engine": {"speculative": {"method": "draft", "source": "pvc://other/b"}},
        "adapters": [{"name": "a", "source": "hf://o/n"}],
        "resources": {"profile": "gpu"},
    }
    body = {"metadata": STORED | {"name": "dinghy"}, "spec": spec}
    made = children(LLMDeployment.from_body(body), OperatorSettings())
    (pod,) = (each["spec"]["template"]["spec"] for each in made if each["kind"] == "Deployment")
    assert {volume["name"] for volume in pod["volumes"]} == set(OUR_VOLUMES)


def test_the_chart_has_the_tables_own_text() -> None:
    written = generate_admission_policy.FILE.read_text(encoding="utf-8")
    assert written == generate_admission_policy.text(), "run `make crds`"


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"images": ["*"]}, "admissionPolicy.images[0]"),
        ({"sources": ["hf"]}, "admissionPolicy.sources[0]"),
        ({"secrets": ["a*b"]}, "admissionPolicy.secrets[0]"),
        ({"arguments": ["seed"]}, "admissionPolicy.arguments[0]"),
        ({"image": []}, "admissionPolicy.image"),
    ],
)
def test_an_entry_that_means_nothing_is_refused_by_name(setting: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        OperatorSettings.from_mapping({"admissionPolicy": setting})
    assert refusal.value.name == named


def test_without_a_policy_nothing_is_asked() -> None:
    assert OperatorSettings().admission_policy is None
    assert OperatorSettings.from_mapping({"admissionPolicy": {}}).admission_policy == AdmissionPolicy()
