"""Every example is what the API takes, and says why it is there."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.api.llmdeployment import LLMDeployment, RoutingPolicy, ScalingMode, broken_rules

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples"
FILES = sorted(FOLDER.glob("*.yaml"))
STORED = {"namespace": "default", "uid": "u", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}


@cache
def deployments(path: Path) -> list[dict[str, Any]]:
    documents = list(yaml.safe_load_all(path.read_text()))
    return [document for document in documents if document["kind"] == "LLMDeployment"]


def decoded(path: Path) -> list[LLMDeployment]:
    return [LLMDeployment.from_body(body | {"metadata": STORED | body["metadata"]}) for body in deployments(path)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_example_is_valid_and_explains_itself(path: Path) -> None:
    assert path.read_text().startswith("# ")
    assert decoded(path)
    assert [broken_rules(body) for body in deployments(path)] == [[]] * len(deployments(path))


def test_examples_are_numbered_without_gaps() -> None:
    assert [path.name[:2] for path in FILES] == [f"{number:02}" for number in range(1, len(FILES) + 1)]


def test_no_two_examples_are_about_the_same_object() -> None:
    """Whoever applies one after the other must not change the first into something that is neither."""
    named = [
        (document["kind"], document["metadata"]["name"])
        for path in FILES
        for document in yaml.safe_load_all(path.read_text())
    ]
    assert sorted(set(named)) == sorted(named)


def test_the_demo_has_what_it_plays() -> None:
    path = FOLDER / "02-autoscaling.yaml"
    assert path.read_text().startswith("# Between none and two replicas,")
    (deployment,) = decoded(path)
    scaling = deployment.spec.autoscaling
    assert scaling is not None
    assert (deployment.spec.replicas, scaling.min_replicas, scaling.max_replicas) == (None, 0, 2)
    assert deployment.spec.engine.max_num_seqs is not None and deployment.spec.engine.max_num_seqs <= 4


def test_devices_are_claimed_as_kubernetes_has_it() -> None:
    reason = "pip install -r requirements/kubernetes.txt"
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason=reason)
    documents = list(yaml.safe_load_all((FOLDER / "09-devices.yaml").read_text()))
    (template,) = (each for each in documents if each["kind"] == "ResourceClaimTemplate")
    kubernetes_validate.validate(template, "1.34", strict=True)
    named = [each.spec.resources.claim_template_name for each in decoded(FOLDER / "09-devices.yaml")]
    assert named == [None, template["metadata"]["name"]]


def test_every_policy_is_shown() -> None:
    shown = [deployment.spec.routing.policy for deployment in decoded(FOLDER / "03-routing-policies.yaml")]
    assert shown == list(RoutingPolicy)


def test_the_external_autoscaler_writes_to_the_objects_scale() -> None:
    path = FOLDER / "04-external-autoscaler.yaml"
    (deployment,) = decoded(path)
    assert deployment.spec.autoscaling is not None and deployment.spec.autoscaling.mode is ScalingMode.EXTERNAL
    (hpa,) = [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == "HorizontalPodAutoscaler"]
    (body,) = deployments(path)
    target = hpa["spec"]["scaleTargetRef"]
    assert (target["apiVersion"], target["kind"], target["name"]) == (
        body["apiVersion"], body["kind"], body["metadata"]["name"],
    )  # fmt: skip


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name
)
def test_what_is_to_be_typed_uses_only_what_is_there(page: Path) -> None:
    """Files of the repository, or those that the page says how to make; models of its own, or of examples it names."""
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    files = set(re.findall(r"(?:-f|--file|--values|-d) @?([\w./-]+\.(?:yaml|json))", blocks))
    assert [file for file in files if not (ROOT / file).exists() and text.count(file) == 1] == []
    named = {each["metadata"]["name"]: path for path in FILES for each in deployments(path)}
    asked = set(re.findall(r"(?:--model|kubectl \w+ llm) ([a-z][a-z-]*)", blocks))
    unnamed = [
        name
        for name in asked
        if name in named and name != "dinghy" and named[name].name not in text and f"name: {name}" not in text
    ]
    assert unnamed == [], "which example is it of?"
