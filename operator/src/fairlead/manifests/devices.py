"""Claims for a replica's devices, by dynamic resource allocation: the ResourceClaimTemplate named by pods, and the
operator's own template. Kubernetes makes a ResourceClaim for each pod, and deletes the claim with the pod."""

from collections.abc import Mapping
from typing import Any

from fairlead.api import names
from fairlead.api.devices import DeviceRequest
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.api.pod_spec import pod_spec_of
from fairlead.manifests.common import GPU, Manifest, child, fingerprint
from fairlead.manifests.source import CannotBuild
from fairlead.operator_settings import Profile


def pod_claims(deployment: LLMDeployment, profile: Profile) -> list[dict[str, str]]:
    """The claims of a pod; empty = no devices."""
    template = deployment.spec.resources.claim_template_name
    if template is None and profile.devices is not None:
        template = _template_name(deployment, profile.devices)
    return [] if template is None else [{"name": names.DEVICES_CLAIM, "resourceClaimTemplateName": template}]


def claim_templates(deployment: LLMDeployment, profile: Profile) -> tuple[Manifest, ...]:
    """The operator's own template; empty = no template."""
    if profile.devices is None:
        return ()
    body = {"spec": {"spec": {"devices": {"requests": [_request(profile.devices)]}}}}
    name = _template_name(deployment, profile.devices)
    return (child(deployment, "resource.k8s.io/v1", "ResourceClaimTemplate", body, name=name),)


def _template_name(deployment: LLMDeployment, devices: DeviceRequest) -> str:
    """By content, because a template never changes."""
    return f"{names.engine_child(deployment.metadata.name)}-{fingerprint(_request(devices))}"


def claims_devices(manifest: Mapping[str, Any]) -> bool:
    """Whether the pods of a Deployment have a claim written by the operator."""
    claims = pod_spec_of(manifest).get("resourceClaims") or () if manifest["kind"] == "Deployment" else ()
    return any(each["name"] == names.DEVICES_CLAIM for each in claims)


def _request(devices: DeviceRequest) -> dict[str, Any]:
    exactly: dict[str, Any] = {
        "deviceClassName": devices.device_class_name,
        "allocationMode": "ExactCount",
        "count": devices.count,
    }
    if devices.selectors:
        exactly["selectors"] = [{"cel": {"expression": each}} for each in devices.selectors]
    return {"name": names.DEVICES_CLAIM, "exactly": exactly}


def check_devices(
    field: str, devices: DeviceRequest | None, resources: Mapping[str, Any], deployment: LLMDeployment
) -> None:
    """Raises CannotBuild unless there is a device for each rank, and no GPU by name beside them. `resources`: limits
    and requests of the engine."""
    if devices is None:
        return
    num_ranks = deployment.spec.engine.tensor_parallel_size
    if devices.count != num_ranks:
        raise CannotBuild(
            f"{field}: devices.count is {devices.count}, and engine.tensorParallelSize is {num_ranks}: make them equal"
        )
    asked = (name for kind in ("limits", "requests") for name in resources.get(kind) or {})
    if (name := next(filter(GPU.search, asked), None)) is not None:
        raise CannotBuild(f"{field} asks for devices of {devices.device_class_name}, and for {name}: leave one out")
