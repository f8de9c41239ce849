"""Devices by dynamic resource allocation: the claim template that is made, and what pods say of it."""

import re
from typing import Any

import pytest

from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.children import children
from fairlead.manifests.common import Manifest
from fairlead.manifests.source import CannotBuild
from fairlead.operator_settings import OperatorSettings
from fairlead_testing.fleet_objects import stored

SETTINGS = OperatorSettings.from_mapping(
    {"profiles": {"slice": {"limits": {"memory": "8Gi"}, "devices": {"deviceClassName": "mig.example"}}}}
)
SELECTOR = "device.capacity['gpu.example'].memory.compareTo(quantity('40Gi')) >= 0"
PAIR = {"deviceClassName": "gpu.example", "count": 2, "selectors": [SELECTOR]}
TWO_RANKS = {"engine": {"tensorParallelSize": 2}}
GPU_BY_NAME = {"containers": [{"name": "engine", "resources": {"limits": {"a.b/gpu": "1"}}}]}


def built(**spec: Any) -> tuple[list[Manifest], dict[str, Any]]:
    """The claim templates, and the spec of pods."""
    made = children(LLMDeployment.from_body(stored(namespace="ships", **spec)), SETTINGS, ["ResourceClaimTemplate"])
    kinds = [each["kind"] for each in made]
    templates = [each for each in made if each["kind"] == "ResourceClaimTemplate"]
    assert not templates or kinds.index("ResourceClaimTemplate") < kinds.index("Deployment")
    return templates, made[kinds.index("Deployment")]["spec"]["template"]["spec"]


def engine(pod: dict[str, Any]) -> dict[str, Any]:
    containers = [*pod["containers"], *pod.get("initContainers", ())]
    (found,) = (each for each in containers if each["name"] == "engine")
    return dict(found)


def mounts(pod: dict[str, Any]) -> list[str]:
    return [mount["mountPath"] for mount in engine(pod)["volumeMounts"]]


def test_devices_become_a_claim_template_and_a_claim_of_the_engine_alone() -> None:
    resources = {"devices": PAIR, "limits": {"memory": "8Gi"}}
    (template,), pod = built(resources=resources, model={"source": "hf://o/n"}, **TWO_RANKS)
    exactly = {"deviceClassName": "gpu.example", "allocationMode": "ExactCount", "count": 2}
    exactly["selectors"] = [{"cel": {"expression": SELECTOR}}]
    assert template["apiVersion"] == "resource.k8s.io/v1"
    assert template["spec"] == {"spec": {"devices": {"requests": [{"name": "devices", "exactly": exactly}]}}}
    name = template["metadata"]["name"]
    assert re.fullmatch(r"dinghy-engine-[0-9a-f]{16}", name)
    assert pod["resourceClaims"] == [{"name": "devices", "resourceClaimTemplateName": name}]
    assert engine(pod)["resources"] == {"limits": {"memory": "8Gi"}, "claims": [{"name": "devices"}]}
    assert pod["initContainers"][0]["resources"] == {"limits": {"memory": "8Gi"}}, "the download needs no device"
    assert "/dev/shm" in mounts(pod)


def test_a_template_never_changes_so_each_content_has_its_own() -> None:
    one, _ = built(resources={"devices": {"deviceClassName": "gpu.example"}})
    same, _ = built(resources={"devices": {"deviceClassName": "gpu.example"}}, replicas=3)
    other, _ = built(resources={"devices": {"deviceClassName": "mig.example"}})
    assert one[0]["metadata"]["name"] == same[0]["metadata"]["name"] != other[0]["metadata"]["name"]


def test_a_profile_may_have_devices_and_one_device_needs_no_shared_memory() -> None:
    (template,), pod = built(resources={"profile": "slice"})
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "mig.example", "allocationMode": "ExactCount", "count": 1}
    assert pod["resourceClaims"][0]["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert "/dev/shm" not in mounts(pod)


def test_pods_name_an_existing_claim_template() -> None:
    templates, pod = built(resources={"claimTemplateName": "two-gpus"}, **TWO_RANKS)
    assert templates == []
    assert pod["resourceClaims"] == [{"name": "devices", "resourceClaimTemplateName": "two-gpus"}]
    assert "/dev/shm" in mounts(pod)


def test_behind_a_front_the_server_has_the_devices() -> None:
    server = {"type": "vLLM", "image": "vllm/vllm-openai:v0.22.0"}
    _, pod = built(resources={"devices": {"deviceClassName": "g"}}, model={"source": "hf://o/n"}, engine=server)
    assert engine(pod)["resources"] == {"claims": [{"name": "devices"}]}
    assert ["claims" in each["resources"] for each in pod["containers"]] == [False]


def test_a_template_adds_claims_of_its_own() -> None:
    claims = {"containers": [{"name": "engine", "resources": {"claims": [{"name": "nic"}]}}]}
    overlay = {"spec": {"resourceClaims": [{"name": "nic", "resourceClaimName": "shared"}], **claims}}
    _, pod = built(resources={"devices": {"deviceClassName": "gpu.example"}}, template=overlay)
    assert [each["name"] for each in pod["resourceClaims"]] == ["devices", "nic"]
    assert engine(pod)["resources"]["claims"] == [{"name": "devices"}, {"name": "nic"}]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (
            {"resources": {"profile": "slice"}, **TWO_RANKS},
            "resources.profile 'slice': devices.count is 1, and engine.tensorParallelSize is 2: make them equal",
        ),
        ({"resources": {"devices": PAIR}, "engine": {"tensorParallelSize": 4}}, "resources: devices.count is 2, and"),
        (
            {"resources": {"devices": PAIR, "limits": {"nvidia.com/gpu": "2"}}, **TWO_RANKS},
            "resources asks for devices of gpu.example, and for nvidia.com/gpu: leave one out",
        ),
        ({"resources": {"profile": "slice"}, "template": {"spec": GPU_BY_NAME}}, "template.spec asks for devices of"),
    ],
)
def test_devices_that_would_be_idle_or_twice_are_refused(spec: dict[str, Any], told: str) -> None:
    with pytest.raises(CannotBuild, match=re.escape(told)):
        built(**spec)
