"""A claim with a model on it: the volume fits exactly this claim."""

import pytest
from homes.local import claim
from homes.volumes import FILL, FOLDER, eraser, filler, opener, volume

NODE = {"metadata": {"name": "node-1", "labels": {"kubernetes.io/hostname": "host-1"}}}
DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}


def test_the_volume_is_for_this_claim_on_this_node() -> None:
    made = volume(claim("models"), "default", NODE, [])
    assert made["spec"]["claimRef"] == {"namespace": "default", "name": "models"}
    assert made["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert made["spec"]["capacity"] == {"storage": "1Gi"}
    [term] = made["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["host-1"]
    assert "storageClassName" not in made["spec"]


@pytest.mark.parametrize(
    ("annotations", "wanted"), [(DEFAULT, "standard"), ({}, None), (dict.fromkeys(DEFAULT, "false"), None)]
)
def test_the_volume_is_of_the_class_that_the_claim_will_be_given(annotations: dict, wanted: str | None) -> None:
    classes = [{"metadata": {"name": "standard", "annotations": annotations}}]
    assert volume(claim("models"), "default", NODE, classes)["spec"].get("storageClassName") == wanted


def test_the_folder_that_is_filled_is_the_one_that_is_erased() -> None:
    made = volume(claim("models"), "default", NODE, [])
    filled, erased = filler("models", "engine:1", FILL, ["cutter"]), eraser("default-models", "engine:1", NODE)
    assert filled["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "models"}
    assert filled["spec"]["containers"][0]["command"][-2:] == ["/volume", "cutter"]
    parent, folder = erased["spec"]["volumes"][0]["hostPath"]["path"], erased["spec"]["containers"][0]["command"][-1]
    assert f"{parent}/{folder}" == made["spec"]["hostPath"]["path"]
    assert erased["spec"]["nodeName"] == "node-1"


def test_the_folder_of_a_node_that_is_opened_is_the_one_that_is_erased() -> None:
    opened, erased = opener("node-models", "engine:1", NODE), eraser("node-models", "engine:1", NODE)
    path = opened["spec"]["volumes"][0]["hostPath"]["path"]
    assert opened["spec"]["containers"][0]["command"][-1] == "/volume"
    assert path == f"{FOLDER}/{erased['spec']['containers'][0]['command'][-1]}"
    assert opened["spec"]["nodeName"] == erased["spec"]["nodeName"] == "node-1"
