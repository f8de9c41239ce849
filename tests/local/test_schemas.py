"""The schemas of the built-in kinds: Kubernetes' own, and what the API server says to those who do not keep to them."""

from typing import Any

import generate_schemas
import pytest
from kubernetes import client

from fairlead_local.apiserver import admission
from fairlead_local.apiserver.resources import (
    BUILT_IN,
    DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    SERVICES,
    ResourceType,
    schema_of,
)
from fairlead_local.apiserver.status import StatusError

NAMES = (
    *("ObjectMeta", "PodSpec", "Container", "Probe", "Volume", "DeploymentSpec", "DeploymentStatus", "ReplicaSetSpec"),
    *("ReplicaSetStatus", "ServiceSpec", "ServicePort", "PersistentVolumeClaimSpec", "LeaseSpec"),
    *("CustomResourceDefinitionSpec", "CustomResourceDefinitionVersion"),
)
MODELS = {name: getattr(client, f"V1{name}") for name in NAMES} | {"Event": client.CoreV1Event}


def test_the_file_is_the_generated_text() -> None:
    pytest.importorskip("kubernetes_validate", reason="pip install -r requirements/kubernetes.txt")
    assert generate_schemas.FILE.read_text(encoding="utf-8") == generate_schemas.text(), "run `make schemas`"


@pytest.mark.parametrize("name", MODELS)
def test_no_field_of_the_official_client_is_refused_as_a_typo(name: str) -> None:
    known = {field.lstrip("_") for field in MODELS[name].attribute_map.values()}
    assert known - schema_of(name)["properties"].keys() == set()


@pytest.mark.parametrize("resource", BUILT_IN, ids=lambda resource: resource.kind)
def test_every_kind_is_named_as_kubernetes_names_it(resource: Any) -> None:
    assert resource.list_name == f"{resource.kind}List"
    assert resource.singular_name == resource.kind.lower()
    assert resource.schema["properties"]["metadata"] is schema_of("ObjectMeta")


def refusal(resource: ResourceType, **fields: Any) -> str:
    with pytest.raises(StatusError) as refused:
        admission.admit(resource, {"metadata": {"name": "a"}} | fields, None)
    return str(refused.value).partition(" is invalid: ")[2]


@pytest.mark.parametrize(
    ("resource", "sentence"),
    [
        (PODS, "spec.containers: Required value"),
        (SERVICES, "spec.ports: Required value"),
        (DEPLOYMENTS, "[spec.selector: Required value, spec.template: Required value]"),
        (REPLICA_SETS, "spec.selector: Required value"),
    ],
    ids=lambda case: getattr(case, "kind", ""),
)
def test_an_object_without_spec_is_told_what_has_to_be_in_it(resource: ResourceType, sentence: str) -> None:
    assert refusal(resource) == sentence


def test_what_only_a_cluster_uses_is_checked_too() -> None:
    pod = {"containers": [{"name": "a", "image": "b", "securityContext": {"runAsUser": "me"}}]}
    assert refusal(PODS, spec=pod).startswith('spec.containers[0].securityContext.runAsUser: Invalid value: "string"')
    pod = {"containers": [{"name": "a", "image": "b"}], "restartPolicy": "Sometimes"}
    choices = '"Always", "OnFailure", "Never"'
    assert refusal(PODS, spec=pod) == f'spec.restartPolicy: Unsupported value: "Sometimes": supported values: {choices}'


def test_a_status_may_lack_what_nobody_counts_on_and_has_to_have_what_is_printed_of_it() -> None:
    spec = {"containers": [{"name": "a", "image": "b"}]}
    states: list[dict[str, Any]] = [{"name": "a"}]
    pod = {"metadata": {"name": "a"}, "spec": spec, "status": {"containerStatuses": states}}
    assert admission.admit(PODS, pod, None)["status"]["containerStatuses"] == states
    states[0]["state"] = {"terminated": {}}
    assert refusal(PODS, **pod) == "status.containerStatuses[0].state.terminated.exitCode: Required value"
