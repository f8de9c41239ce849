"""What the API refuses, it refuses by name; what cannot be satisfied ends in a condition that says what to do."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import kubernetes
import pytest
import yaml
from hopeless import HOPELESS, MIN_ABOVE_MAX, MIN_ABOVE_MAX_SENTENCE, Hopeless

from fairlead_testing.measured_profiles import measured_profile, profile_config_map

WRONG = {
    "typo": ({"replcas": 2}, 'unknown field "spec.replcas"'),
    "rule": ({"autoscaling": MIN_ABOVE_MAX}, MIN_ABOVE_MAX_SENTENCE),
}
"""A spec with a typo and one that breaks a rule between fields, and what every way of applying them is answered."""
wrong = pytest.mark.parametrize(("spec", "sentence"), WRONG.values(), ids=WRONG)


@wrong
def test_kubectl_is_refused_by_name(fleet, manifest, name: str, spec: dict, sentence: str) -> None:
    refused = fleet.apply(manifest(name, **spec), check=False)
    assert refused.returncode != 0
    assert sentence in refused.stderr


def official(fleet) -> kubernetes.client.CustomObjectsApi:
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(fleet.kubeconfig), client_configuration=configuration)
    return kubernetes.client.CustomObjectsApi(kubernetes.client.ApiClient(configuration))


GVR = ("fairlead.dev", "v1alpha1", "default", "llmdeployments")


@wrong
def test_the_official_client_is_refused_with_the_same_sentence(
    fleet, manifest, name: str, spec: dict, sentence: str
) -> None:
    with pytest.raises(kubernetes.client.ApiException) as refused:
        official(fleet).create_namespaced_custom_object(*GVR, manifest(name, **spec), field_validation="Strict")
    assert refused.value.status in (400, 422)
    assert sentence in json.loads(refused.value.body)["message"]


@pytest.mark.local_only(reason="`fairlead local up -f` applies to local mode only")
@wrong
def test_the_local_command_refuses_the_same(
    fleet, manifest, command, name: str, tmp_path: Path, spec: dict, sentence: str
) -> None:
    file = tmp_path / "llm.yaml"
    file.write_text(yaml.safe_dump(manifest(name, **spec)))
    refused: subprocess.CompletedProcess = command("local", "up", "--data-dir", str(fleet.folder), "-f", str(file))
    assert refused.returncode != 0
    assert sentence in refused.stdout + refused.stderr


def test_every_way_of_applying_gives_the_same_object_and_children(
    fleet, manifest, command, name: str, tmp_path: Path
) -> None:
    names = [f"{name}-{way}" for way in ("kubectl", "server", "client", "local")]
    fleet.apply(manifest(names[0], replicas=0))
    file = tmp_path / "llm.yaml"
    file.write_text(yaml.safe_dump(manifest(names[1], replicas=0)))
    fleet.kubectl("apply", "--server-side", "-f", str(file))
    official(fleet).create_namespaced_custom_object(*GVR, manifest(names[2], replicas=0))
    if fleet.home == "local":
        file.write_text(yaml.safe_dump(manifest(names[3], replicas=0)))
        applied = command("local", "up", "--data-dir", str(fleet.folder), "-f", str(file))
        assert applied.returncode == 0, applied.stdout + applied.stderr
    else:
        names.pop()

    def configuration_of(name: str) -> str:
        (found,) = (child for child in fleet.children(name) if child.startswith("configmap/"))
        return found.partition("/")[2]

    def shape(name: str) -> str:
        wanted = {
            "spec": fleet.get("llm", name)["spec"],
            "conditions": [
                (c["type"], c["status"], c["reason"]) for c in fleet.get("llm", name)["status"]["conditions"]
            ],
            "deployment": fleet.get("deployment", f"{name}-engine")["spec"],
            "configuration": fleet.get("configmap", configuration_of(name))["data"],
            # a ReplicaSet's name ends in the hash of its pods' template, which has the deployment's name in it
            "children": sorted(child.split("-engine-")[0] for child in fleet.children(name)),
        }
        return json.dumps(wanted, sort_keys=True).replace(name, "NAME")

    for each in names:
        fleet.wait_condition(each, "ScalingActive", "False")
        fleet.wait(f"{each}'s Service", lambda each=each: f"service/{each}" in fleet.children(each))
        fleet.wait(f"{each} to be at rest", lambda each=each: is_at_rest(fleet, each))
    hashed = [_without_hashes(shape(each)) for each in names]
    for each in names:
        fleet.kubectl("delete", "llm", each)
    assert set(hashed) == {hashed[0]}


def is_at_rest(fleet, name: str) -> bool:
    return fleet.condition(name, "Progressing").get("status") == "False"


def _without_hashes(shape: str) -> str:
    """The configuration's hash covers the served name, which differs between the ways."""
    document = json.loads(shape)
    document["deployment"]["template"]["metadata"].pop("annotations", None)
    document["deployment"]["template"]["spec"]["volumes"][0].pop("configMap")
    return json.dumps(document, sort_keys=True)


@pytest.fixture(scope="module")
def without_hope(deployed_for_all: Callable[..., str], shared_name: str) -> dict[str, str]:
    """The name of an LLMDeployment of each hopeless spec. They wait together: for kubelets, most of the time."""
    return {
        str(each): deployed_for_all(f"{shared_name}-{number}", **{"source": "demo://dinghy", **each.spec})
        for number, each in enumerate(HOPELESS)
    }


@pytest.mark.cluster_suffices
@pytest.mark.parametrize("hopeless", HOPELESS, ids=str)
def test_a_spec_that_cannot_be_satisfied_ends_in_a_condition_that_says_what_to_do(
    fleet, without_hope: dict[str, str], hopeless: Hopeless
) -> None:
    name = without_hope[str(hopeless)]
    seen = fleet.wait_condition(name, hopeless.condition, "False", hopeless.reason)
    for word in hopeless.words:
        assert word in seen["message"]
    assert fleet.condition(name, "Ready")["status"] == "False"


@pytest.mark.cluster_suffices
def test_a_profile_of_another_model_ends_in_a_condition_with_what_differs(
    fleet, deployed: Callable[..., str], name: str
) -> None:
    config_map = profile_config_map(measured_profile(architecture="OtherForCausalLM"), name=name)
    fleet.apply(config_map)
    try:
        deployed(name, engine={"profile": {"configMap": name}})
        seen = fleet.wait_condition(name, "Ready", "False", "InvalidConfig")
        assert (
            "was measured with architecture OtherForCausalLM, and this engine has LlamaForCausalLM" in seen["message"]
        )
    finally:
        fleet.delete("configmap", name)


@pytest.mark.local_only(reason="elsewhere the source is refused (test_control_plane.py)")
def test_a_folder_of_the_engine_s_machine_that_is_not_there_is_told(
    fleet, deployed: Callable[..., str], name: str
) -> None:
    deployed(name, "file:///no/such/folder")
    seen = fleet.wait_condition(name, "ModelAvailable", "False", "ModelNotFound")
    wanted = "/no/such/folder does not exist or is not a folder; give a folder with config.json, safetensors weights"
    assert wanted in seen["message"]
    assert fleet.condition(name, "Ready")["status"] == "False"


@pytest.mark.kubernetes_only(reason="local mode enforces no memory limit")
def test_an_engine_that_needs_more_memory_than_its_limit_is_told(
    fleet, deployed: Callable[..., str], name: str
) -> None:
    # Far below the 150 MiB that torch takes: with little less it would go on for minutes on pages read again and again.
    small = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "96Mi"}}
    deployed(name, resources=small)
    seen = fleet.wait_condition(name, "Ready", "False", "OutOfMemory")
    assert "it used more memory than its limit: raise resources.limits.memory" in seen["message"]
