"""The built-in schemas know the fields Kubernetes knows: held to the official client's models."""

from typing import Any

import pytest
from kubernetes import client

from fairlead_local.apiserver.resources import BUILT_IN
from fairlead_local.apiserver.schemas import core, pods, workloads
from fairlead_local.apiserver.schemas.schema import OBJECT_META


def below(schema: dict[str, Any], *fields: str) -> dict[str, Any]:
    for field in fields:
        schema = schema["properties"][field]
        schema = schema.get("items", schema)
    return schema


@pytest.mark.parametrize(
    ("model", "schema"),
    [
        (client.V1ObjectMeta, OBJECT_META),
        (client.V1PodSpec, pods.POD_SPEC),
        (client.V1Container, pods.CONTAINER),
        (client.V1Probe, pods.PROBE),
        (client.V1Volume, pods.VOLUME),
        (client.V1DeploymentSpec, below(workloads.DEPLOYMENT, "spec")),
        (client.V1DeploymentStatus, below(workloads.DEPLOYMENT, "status")),
        (client.V1ReplicaSetSpec, below(workloads.REPLICA_SET, "spec")),
        (client.V1ReplicaSetStatus, below(workloads.REPLICA_SET, "status")),
        (client.V1ServiceSpec, below(core.SERVICE, "spec")),
        (client.V1ServicePort, below(core.SERVICE, "spec", "ports")),
        (client.V1PersistentVolumeClaimSpec, below(core.PERSISTENT_VOLUME_CLAIM, "spec")),
        (client.CoreV1Event, core.EVENT),
        (client.V1LeaseSpec, below(core.LEASE, "spec")),
        (client.V1CustomResourceDefinitionSpec, below(core.CUSTOM_RESOURCE_DEFINITION, "spec")),
        (client.V1CustomResourceDefinitionVersion, below(core.CUSTOM_RESOURCE_DEFINITION, "spec", "versions")),
    ],
)
def test_no_field_of_kubernetes_is_refused_as_a_typo(model: Any, schema: dict[str, Any]) -> None:
    known = {name.lstrip("_") for name in model.attribute_map.values()}
    assert known - schema["properties"].keys() == set()


@pytest.mark.parametrize("resource", BUILT_IN, ids=lambda resource: resource.kind)
def test_every_kind_is_named_as_kubernetes_names_it(resource: Any) -> None:
    assert resource.list_name == f"{resource.kind}List"
    assert resource.singular_name == resource.kind.lower()
    assert resource.schema["properties"]["metadata"] is OBJECT_META
