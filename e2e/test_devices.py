"""Devices on a genuine Kubernetes, by dynamic resource allocation and as an extended resource: a scheduler and a
kubelet decide, plugins of the suite's own have the devices, and engines for CPUs run with them."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from cluster.layout import NAME
from cluster.node import Node
from homes import Fleet
from homes.fleet import environment

pytest.importorskip("grpc", reason="needs grpcio: pip install -r requirements/dev.txt")

from kubelet_plugins import VARIABLE, device_driver, device_plugin

Json = dict[str, Any]
pytestmark = pytest.mark.kubernetes_only(reason="no kubelet of local mode has devices that are asked for")

DRIVER, CLASS, API = "gpu.fairlead.test", "gpu.fairlead.test", "resource.k8s.io/v1"
GPU = "nvidia.com/gpu"
MEMORY = {"small": "8Gi", "large": "80Gi"}
"""Devices of the node, by name."""
CPUS = {"requests": {"cpu": "100m", "memory": "384Mi"}, "limits": {"memory": "2Gi"}}


def larger_than(size: str) -> Json:
    selector = f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('{size}'))"
    return {"devices": {"deviceClassName": CLASS, "selectors": [selector]}, **CPUS}


def rights() -> tuple[Json, Json]:
    """What the chart's `rbac.readDevices` makes: the suite's release has no rights in the whole cluster."""
    group, metadata = "rbac.authorization.k8s.io", {"name": "fairlead-e2e-devices"}
    listed = (("", ["nodes"]), ("resource.k8s.io", ["resourceslices", "deviceclasses"]))
    rules = [{"apiGroups": [each], "resources": kinds, "verbs": ["list"]} for each, kinds in listed]
    subject = {"kind": "ServiceAccount", "name": "fairlead-operator", "namespace": "fairlead-system"}
    role = {"apiGroup": group, "kind": "ClusterRole", **metadata}
    head = {"apiVersion": f"{group}/v1", "metadata": metadata}
    binding = {**head, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]}
    return {**head, "kind": "ClusterRole", "rules": rules}, binding


def published() -> tuple[Json, Json]:
    """The DeviceClass, and the node's devices."""
    expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"
    selectors = {"selectors": [{"cel": {"expression": expression}}]}
    devices = [
        {"name": name, "attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": size}}}
        for name, size in MEMORY.items()
    ]
    pool = {"name": NAME, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": NAME, "pool": pool, "devices": devices}
    return (
        {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": CLASS}, "spec": selectors},
        {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": DRIVER}, "spec": spec},
    )


@pytest.fixture(scope="module")
def node(fleet: Fleet) -> Iterator[Node]:
    """The suite's own node, with a driver and its devices."""
    found = getattr(fleet, "node", None)
    if found is None:
        pytest.skip("needs the suite's own node, whose kubelet takes plugins from this machine")
    if fleet.kubectl("get", "--raw", f"/apis/{API}", check=False).returncode:
        pytest.skip(f"this version of Kubernetes does not serve {API}")
    root = found.layout.root

    def claim(namespace: str, name: str) -> Json:
        return dict(json.loads(fleet.kubectl("get", "resourceclaim", name, "-n", namespace, "-o", "json").stdout))

    made = (*rights(), *published())
    with ExitStack() as stack:
        for manifest in made:
            stack.callback(fleet.delete, manifest["kind"], manifest["metadata"]["name"])
        fleet.apply(*made)
        stack.enter_context(device_driver(root / "var-lib", root / "run", DRIVER, list(MEMORY), claim))
        yield found


def devices_of(fleet: Fleet, name: str) -> set[str]:
    """What a replica's processes find in their environment."""
    [pod] = fleet.pods(name).values()
    return {environment(process).get(VARIABLE, "") for process in fleet.processes(pod)}


def allocated(fleet: Fleet, template: str) -> list[str]:
    """Devices of the claims that pods of this template's have."""
    pods = fleet.get("pods")["items"]
    names = {claim.get("resourceClaimTemplateName") for pod in pods for claim in pod["spec"].get("resourceClaims", ())}
    if template not in names:
        return []
    claims = (each.get("status", {}).get("allocation", {}) for each in fleet.get("resourceclaims")["items"])
    return [result["device"] for each in claims for result in each.get("devices", {}).get("results", ())]


def told(fleet: Fleet, name: str, *reasons: str) -> str:
    return str(fleet.wait_condition(name, "Degraded", "True", *reasons)["message"])


def test_a_replica_claims_the_device_that_it_asks_for(
    fleet: Fleet, node: Node, deployed: Callable[..., str], name: str
) -> None:
    """From no such device, by an edit, to the large one; a second replica's claim is pending then."""
    deployed(name, resources=larger_than("90Gi"))
    sentence = told(fleet, name, "DevicesMissing")
    assert f"no device of the class {CLASS} is as devices.selectors ask, of 2, the largest with 81920 MiB" in sentence
    assert "The scheduler says: " in sentence
    fleet.merge(name, {"resources": {"devices": larger_than("40Gi")["devices"]}})
    fleet.wait_ready(name)
    assert devices_of(fleet, name) == {"large"}
    fits = fleet.condition(name, "Fits")
    assert (fits["status"], fits["reason"]) == ("True", "Fits") and "has 80.0 GiB" in fits["message"], fits
    assert fleet.adds_up(name)
    fleet.merge(name, {"replicas": 2})
    sentence = told(fleet, name, "Unschedulable")
    assert "its claim " in sentence and "for devices is pending" in sentence, sentence


def test_what_is_wrong_with_a_request_for_devices_is_named(
    fleet: Fleet, node: Node, deployed: Callable[..., str], name: str
) -> None:
    deployed(name, resources={"devices": {"deviceClassName": "gpu.nobody.test"}, **CPUS})
    assert f"(there are {CLASS})" in told(fleet, name, "DeviceClassNotFound")
    fleet.merge(name, {"resources": {"devices": None, "claimTemplateName": name}})
    assert f"there is no ResourceClaimTemplate '{name}'" in told(fleet, name, "ClaimTemplateNotFound")
    request = {"name": "any", "exactly": {"deviceClassName": CLASS}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    fleet.apply({"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": spec})
    try:
        [device] = fleet.wait("a claim from the template to be allocated", lambda: allocated(fleet, name))
        assert device in MEMORY
    finally:
        fleet.delete("resourceclaimtemplate", name)


def test_a_device_plugin_s_gpu_is_waited_for_and_its_memory_told(
    fleet: Fleet, node: Node, deployed: Callable[..., str], name: str
) -> None:
    deployed(name, resources={"gpus": 1, **CPUS})
    assert f"no node has {GPU}: install the device plugin" in told(fleet, name, "DevicesMissing")
    fleet.kubectl("label", "node", NAME, f"{GPU}.memory=46068")
    try:
        with device_plugin(node.layout.root / "var-lib", GPU, ["gpu-0"]):
            fleet.wait_ready(name)
            assert devices_of(fleet, name) == {"gpu-0"}
            fits = fleet.wait_condition(name, "Fits", "True", "Fits")
            assert "has 45.0 GiB" in fits["message"]
    finally:
        fleet.kubectl("label", "node", NAME, f"{GPU}.memory-")
