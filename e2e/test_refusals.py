"""What the API refuses, it refuses by name; what cannot be satisfied ends in a condition that says what to do."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

MIN_ABOVE_MAX = {"minReplicas": 3, "maxReplicas": 2}


def test_kubectl_refuses_a_typo_by_the_field_s_name(fleet, manifest, name: str) -> None:
    refused = fleet.apply(manifest(name, replcas=2), check=False)
    assert refused.returncode != 0
    assert 'unknown field "spec.replcas"' in refused.stderr


def test_kubectl_refuses_min_above_max_with_the_rule_s_sentence(fleet, manifest, name: str) -> None:
    refused = fleet.apply(manifest(name, autoscaling=MIN_ABOVE_MAX), check=False)
    assert refused.returncode != 0
    assert "minReplicas" in refused.stderr
    assert "must not be above" in refused.stderr


def official(fleet):
    import kubernetes

    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(fleet.kubeconfig), client_configuration=configuration)
    return kubernetes.client.CustomObjectsApi(kubernetes.client.ApiClient(configuration))


GVR = ("fairlead.dev", "v1alpha1", "default", "llmdeployments")


def test_the_official_client_is_refused_with_the_same_sentences(fleet, manifest, name: str) -> None:
    import kubernetes

    api = official(fleet)
    for body, sentence in (
        (manifest(name, replcas=2), 'unknown field "spec.replcas"'),
        (manifest(name, autoscaling=MIN_ABOVE_MAX), "must not be above"),
    ):
        with pytest.raises(kubernetes.client.ApiException) as refused:
            api.create_namespaced_custom_object(*GVR, body, field_validation="Strict")
        assert refused.value.status in (400, 422)
        assert sentence in json.loads(refused.value.body)["message"]


def test_the_local_command_refuses_the_same(fleet, manifest, command, name: str, tmp_path: Path) -> None:
    for spec, sentence in (
        ({"replcas": 2}, ".spec.replcas: field not declared in schema"),  # server-side apply's own words
        ({"autoscaling": MIN_ABOVE_MAX}, "must not be above"),
    ):
        file = tmp_path / "llm.yaml"
        file.write_text(yaml.safe_dump(manifest(name, **spec)))
        refused: subprocess.CompletedProcess = command("local", "up", "--data-dir", str(fleet.folder), "-f", str(file))
        assert refused.returncode != 0
        assert sentence in refused.stdout + refused.stderr


def test_three_ways_of_applying_give_the_same_object_and_children(
    fleet, manifest, command, name: str, tmp_path: Path
) -> None:
    names = [f"{name}-{way}" for way in ("kubectl", "client", "local")]
    fleet.apply(manifest(names[0], replicas=0))
    official(fleet).create_namespaced_custom_object(*GVR, manifest(names[1], replicas=0))
    file = tmp_path / "llm.yaml"
    file.write_text(yaml.safe_dump(manifest(names[2], replicas=0)))
    applied = command("local", "up", "--data-dir", str(fleet.folder), "-f", str(file))
    assert applied.returncode == 0, applied.stdout + applied.stderr

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
            "children": sorted(child.split("-engine-")[0] for child in fleet.children(name)),
        }
        return json.dumps(wanted, sort_keys=True).replace(name, "NAME")

    for each in names:
        fleet.wait_condition(each, "ScalingActive", "False")
        fleet.wait(f"{each}'s Service", lambda each=each: f"service/{each}" in fleet.children(each))
    hashed = [_without_hashes(shape(each)) for each in names]
    for each in names:
        fleet.kubectl("delete", "llm", each)
    assert hashed[0] == hashed[1] == hashed[2]


def _without_hashes(shape: str) -> str:
    """The configuration's hash covers the served name, which differs between the three."""
    document = json.loads(shape)
    document["deployment"]["template"]["metadata"].pop("annotations", None)
    document["deployment"]["template"]["spec"]["volumes"][0].pop("configMap")
    return json.dumps(document, sort_keys=True)


@pytest.mark.parametrize(
    ("spec", "condition", "reason", "words"),
    [
        ({"resources": {"profile": "gpu-of-dreams"}}, "Ready", "UnknownProfile", ["gpu-of-dreams", "cpu-small"]),
        ({"source": "hf://org/model"}, "ModelAvailable", "SourceNotSupported", ["hf://"]),
        ({"source": "pvc://no-such-claim/model"}, "ModelAvailable", "ModelSourceNotFound", ["no-such-claim"]),
        ({"resources": {"requests": {"cpu": "4000"}}}, "Ready", "Unschedulable", ["Insufficient cpu"]),
        ({"engine": {"image": "example.com/else:1"}}, "Ready", "ImagePullBackOff", ["example.com/else:1"]),
        ({"source": "demo://leviathan"}, "ModelAvailable", "ModelNotFound", ["leviathan", "dinghy"]),
        ({"source": "file:///no/such/folder"}, "ModelAvailable", "ModelNotFound", ["/no/such/folder"]),
        ({"engine": {"kvCache": {"memory": "64Ki"}}}, "Ready", "NotEnoughMemory", ["memory"]),
    ],
    ids=lambda value: value if isinstance(value, str) and value[0].isupper() else None,
)
def test_a_spec_that_cannot_be_satisfied_ends_in_a_condition_that_says_what_to_do(
    fleet, deployed: Callable[..., str], name: str, spec: dict, condition: str, reason: str, words: list[str]
) -> None:
    deployed(name, **{"source": "demo://dinghy", **spec})
    seen = fleet.wait_condition(name, condition, "False", reason)
    for word in words:
        assert word in seen["message"]
    assert fleet.condition(name, "Ready")["status"] == "False"
