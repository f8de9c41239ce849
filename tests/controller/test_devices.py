"""Replicas with devices by dynamic resource allocation: what keeps them from being made, and what is removed when."""

from copy import deepcopy
from typing import Any

from fairlead.api.conditions import Reason
from fairlead.controller.capabilities import BASIC, Capabilities
from fairlead.controller.desired import Desired, desired
from fairlead.controller.observe import Observed
from fairlead.controller.plan import key_of, make_plan
from fairlead.kube.client import JsonObject
from fairlead.operator_settings import OperatorSettings
from fairlead_testing.fleet_objects import stored

SETTINGS = OperatorSettings()
ABLE = Capabilities(wanted=frozenset({"ResourceClaimTemplate"}), no_devices="")
"""Of an API server with dynamic resource allocation."""
GPU: dict[str, Any] = {"devices": {"deviceClassName": "gpu.example"}}


def wanted(capabilities: Capabilities = ABLE, missing: str | None = None, **spec: Any) -> Desired:
    return desired(Observed(body=stored(**spec), missing_claim_template=missing), SETTINGS, capabilities)


def test_an_api_server_without_claims_is_told_of_to_those_alone_that_ask_for_devices() -> None:
    for resources, field in ((GPU, "devices"), ({"claimTemplateName": "a"}, "claimTemplateName")):
        obstacle = wanted(BASIC, resources=resources).obstacle
        assert obstacle is not None and obstacle.reason == Reason.DEVICES_NOT_SUPPORTED
        assert obstacle.message.startswith(
            f"resources.{field} asks for devices by a claim, and this API server does not serve resource.k8s.io/v1: "
        )
    assert wanted(BASIC).obstacle is None


def test_a_missing_claim_template_is_named() -> None:
    obstacle = wanted(missing="two-gpus", resources={"claimTemplateName": "two-gpus"}).obstacle
    assert obstacle is not None and obstacle.reason == Reason.CLAIM_TEMPLATE_NOT_FOUND
    assert "there is no ResourceClaimTemplate 'two-gpus' in the namespace 'ns': create it" in obstacle.message
    assert wanted(resources={"claimTemplateName": "two-gpus"}).obstacle is None


def test_a_claim_template_goes_after_the_last_pod_that_names_it() -> None:
    """A pod's claim is made from it when the pod is, also by a ReplicaSet in the middle of a rollout."""
    before, after = wanted(resources=GPU), wanted(resources={"devices": {"deviceClassName": "other.example"}})
    children = {key_of(each): deepcopy(each) for each in (*before.children, *after.children)}
    for child in children.values():
        child["metadata"] |= {"uid": child["kind"], "generation": 1}
        child["status"] = {"observedGeneration": 1}
    (old,) = (key for key in map(key_of, before.children) if key[0] == "ResourceClaimTemplate")
    claims = [{"name": "devices", "resourceClaimTemplateName": old[1]}]
    pod: JsonObject = {
        "metadata": {"name": "p", "uid": "p", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"resourceClaims": claims},
    }
    observed = Observed(body=stored(resources=GPU), children=children, pods=(pod,))
    assert make_plan(after, observed).prune == ()
    (gone,) = make_plan(after, Observed(body=stored(resources=GPU), children=children)).prune
    assert key_of(gone) == old
