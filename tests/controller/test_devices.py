"""Replicas with devices by dynamic resource allocation: what keeps them from being made, and what is removed when."""

from copy import deepcopy
from typing import Any, cast

import pytest

from fairlead.api.conditions import Reason
from fairlead.controller.capabilities import BASIC, Capabilities
from fairlead.controller.desired import Desired, desired
from fairlead.controller.device_look import ASK_AGAIN_SECONDS, REFUSED_SECONDS, DeviceLook
from fairlead.controller.observe import Observed
from fairlead.controller.plan import key_of, make_plan
from fairlead.controller.pod_diagnosis import PodWarning, Stage, diagnose
from fairlead.controller.status import situation, status
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.resources import DEVICE_CLASSES, NODES, RESOURCE_SLICES, Resource
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


CLASS = {"metadata": {"name": "gpu.example"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}}
SLICE = {
    "spec": {
        "driver": "gpu.example", "nodeName": "a", "pool": {"name": "a", "generation": 1},
        "devices": [{"name": "gpu-0", "capacity": {"memory": {"value": "8Gi"}}}],
    }
}  # fmt: skip
WORDS = "0/1 nodes are available: 1 cannot allocate all claims."
WAITING: JsonObject = {
    "metadata": {"name": "p", "uid": "p", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"resourceClaims": [{"name": "devices", "resourceClaimTemplateName": "t"}]},
    "status": {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": WORDS}],
    },
}


class Lists:
    """An API server that only lists; a number = the status of its refusal."""

    def __init__(self, **kinds: list[JsonObject] | int) -> None:
        self.kinds = kinds
        self.asked: list[str] = []
        self.now = 0.0

    async def list(self, resource: Resource) -> JsonObject:
        self.asked.append(resource.plural)
        answer = self.kinds[resource.plural]
        if isinstance(answer, int):
            raise KubeError(answer, "Forbidden", "no")
        return {"items": answer}

    def look(self) -> DeviceLook:
        return DeviceLook(cast(KubeClient, self), lambda: self.now)


def condition(observed: Observed, type: str) -> dict[str, Any]:
    made = desired(observed, SETTINGS, ABLE)
    now = situation(observed, made, (), is_applying=False)
    found = status(observed, now, SETTINGS, time="2026-01-01T00:00:00Z")["conditions"]
    return dict(next(each for each in found if each["type"] == type))


async def test_devices_are_asked_for_once_and_then_told_in_the_conditions() -> None:
    server = Lists(resourceslices=[SLICE], deviceclasses=[CLASS])
    look, pair = server.look(), {"devices": {"deviceClassName": "gpu.example", "count": 2}}
    waiting = Observed(body=stored(resources=pair, engine={"tensorParallelSize": 2}), pods=(WAITING,))
    for _ in range(2):
        seen = await look.add(waiting, SETTINGS)
    assert server.asked == [RESOURCE_SLICES.plural, DEVICE_CLASSES.plural]
    degraded = condition(seen, "Degraded")
    assert degraded["reason"] == Reason.DEVICES_MISSING
    lacks = "p: no node has 2 such devices of the class gpu.example, the most is 1"
    assert degraded["message"] == f"{lacks}. The scheduler says: {WORDS}"
    fits = condition(seen, "Fits")
    assert (fits["status"], fits["reason"]) == ("True", "Fits") and "8.0 GiB" in fits["message"]
    server.now += ASK_AGAIN_SECONDS
    server.kinds["resourceslices"] = []
    seen = await look.add(waiting, SETTINGS)
    assert condition(seen, "Degraded")["message"].startswith("p: no driver publishes devices of the class gpu.example")
    assert condition(seen, "Fits")["reason"] == "MemoryUnknown"


async def test_without_rights_nothing_is_said_and_seldom_asked() -> None:
    server = Lists(nodes=403)
    look = server.look()
    for seconds in (0, ASK_AGAIN_SECONDS, REFUSED_SECONDS):
        server.now += seconds
        seen = await look.add(Observed(body=stored(resources={"gpus": 1}), pods=(WAITING,)), SETTINGS)
        assert seen.device_lack is None
    assert server.asked == [NODES.plural] * 2
    for spec in ({}, {"resources": {"profile": "none"}}, {"resources": {"claimTemplateName": "a"}}, {"model": 1}):
        assert (await look.add(Observed(body=stored(**spec)), SETTINGS)).devices is None
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ([], "its claim for devices is not made yet; check quotas"),
        ([{"name": "devices", "resourceClaimName": "p-devices-x"}], "its claim p-devices-x for devices is pending: "),
    ],
)
def test_a_pending_claim_is_named_with_the_schedulers_words(made: list[JsonObject], words: str) -> None:
    found = diagnose(WAITING | {"status": WAITING["status"] | {"resourceClaimStatuses": made}})
    assert (found.stage, found.reason) == (Stage.FAILING, Reason.UNSCHEDULABLE)
    assert found.message.startswith(words) and found.message.endswith(f"The scheduler says: {WORDS}")


def test_a_driver_that_cannot_prepare_devices_is_told() -> None:
    creating = {"metadata": {"name": "p"}, "spec": {"nodeName": "a"}, "status": {"phase": "Pending"}}
    found = diagnose(creating, PodWarning("FailedPrepareDynamicResources", "driver gpu.example not registered"))
    assert (found.stage, found.reason) == (Stage.FAILING, Reason.DEVICES_NOT_PREPARED)
    assert "not registered" in found.message
