"""A model that comes as a container image: the node mounts it beside the engine, and nothing is downloaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster.archive import write_folder_image
from cluster.node import Node

import fairlead_engine

pytestmark = [
    pytest.mark.core,
    pytest.mark.kubernetes_only(reason="local mode mounts no images, and says so (test_model_sources.py)"),
]

DINGHY = Path(fairlead_engine.__file__).parent / "demo/dinghy"
IMAGE = "local.test/models/dinghy:1"


@pytest.fixture
def mounting_node(fleet, own_node: Node) -> Node:
    """A node into which images can be loaded, and which mounts them."""
    if not fleet.mounts_images():
        pytest.skip("image volumes are switched off here, as they are by default before Kubernetes 1.35")
    return own_node


@pytest.fixture
def image(mounting_node: Node, tmp_path: Path) -> str:
    """The dinghy's files in a folder `model` of an image that the node has."""
    write_folder_image(DINGHY, "model", IMAGE, tmp_path / "dinghy.tar")
    mounting_node.load_image(tmp_path / "dinghy.tar")
    return IMAGE


def mounted(path: str = "model") -> dict[str, Any]:
    return {"cache": {"image": True, "imagePath": path}}


def test_a_model_in_an_image_is_mounted_and_answers(fleet, image: str, deployed: Callable[..., str], name: str) -> None:
    deployed(name, f"oci://{image}", model=mounted())
    fleet.wait_ready(name)
    [pod] = fleet.pods(name).values()
    [volume] = [volume["image"] for volume in pod["spec"]["volumes"] if "image" in volume]
    assert volume == {"reference": image, "pullPolicy": "IfNotPresent"}
    assert not any("download" in each["name"] for each in pod["spec"].get("initContainers", []))
    assert fleet.adds_up(name)


def test_an_image_that_cannot_be_had_is_told_in_the_kubelet_s_words_and_heals_once_it_is_there(
    fleet, mounting_node: Node, deployed: Callable[..., str], name: str, tmp_path: Path
) -> None:
    missing = f"local.test/models/{name}:1"
    deployed(name, f"oci://{missing}", model=mounted())
    seen = fleet.wait_condition(name, "ModelAvailable", "False", "ImagePullBackOff", "ErrImagePull")
    assert f'failed to pull and unpack image "{missing}"' in seen["message"], seen
    assert fleet.condition(name, "Degraded")["status"] == "True"
    write_folder_image(DINGHY, "model", missing, tmp_path / "dinghy.tar")
    mounting_node.load_image(tmp_path / "dinghy.tar")
    fleet.wait_ready(name)
