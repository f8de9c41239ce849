"""Folders of nodes that hold files, claims among them, on any cluster that allows hostPath volumes. Pure: objects
only."""

from collections.abc import Sequence

from homes.kubectl import OURS, Json

FOLDER = "/var/tmp/fairlead-e2e-volumes"
NODE_MODELS = "node-models"
"""Below FOLDER: where nodes keep the models that they download."""
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
FILL = """
import shutil, sys
from pathlib import Path
import fairlead_engine
source = Path(fairlead_engine.__file__).parent / "demo/dinghy"
shutil.copytree(source, Path(sys.argv[1]) / sys.argv[2], dirs_exist_ok=True)
"""
"""A program that copies the dinghy to a folder of a claim: `python -c FILL ROOT FOLDER`."""
MAKE_WRITABLE = "import os, sys; os.chmod(sys.argv[1], 0o777)"
"""A program that lets the user write to a claim that engines run as, where a node's root has made its folder."""
ERASE = """
import shutil, sys
shutil.rmtree("/volume/" + sys.argv[1], ignore_errors=True)
"""


def volume(claim: Json, namespace: str, node: Json, storage_classes: Sequence[Json]) -> Json:
    """A PersistentVolume for exactly this claim: a folder of that node."""
    name, spec = claim["metadata"]["name"], claim["spec"]
    host = node["metadata"]["labels"]["kubernetes.io/hostname"]
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}
    wanted: Json = {
        "capacity": spec["resources"]["requests"],
        "accessModes": spec["accessModes"],
        "claimRef": {"namespace": namespace, "name": name},
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": f"{FOLDER}/{namespace}-{name}", "type": "DirectoryOrCreate"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    # A claim that names no class is given the default one; the volume must be of the same.
    for known in storage_classes:
        if known["metadata"].get("annotations", {}).get(DEFAULT_CLASS) == "true":
            wanted["storageClassName"] = known["metadata"]["name"]
    metadata = {"name": f"{namespace}-{name}", "labels": OURS}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": wanted}


def filler(claim: str, image: str, program: str, arguments: Sequence[str]) -> Json:
    """A pod of the engine's image in which a program writes onto the claim, whose root is its first argument."""
    source = {"persistentVolumeClaim": {"claimName": claim}}
    return _pod(f"{claim}-filler", image, ["python", "-c", program, "/volume", *arguments], source)


def opener(folder: str, image: str, node: Json) -> Json:
    """A pod of the engine's image that makes a folder below FOLDER of that node, for the user that engines run as."""
    return _on_the_node(f"{folder}-opener", image, MAKE_WRITABLE, f"{FOLDER}/{folder}", "/volume", node)


def eraser(folder: str, image: str, node: Json) -> Json:
    """A pod of the engine's image that removes a folder below FOLDER from that node."""
    return _on_the_node(f"{folder}-eraser", image, ERASE, FOLDER, folder, node)


def _on_the_node(name: str, image: str, program: str, path: str, argument: str, node: Json) -> Json:
    source = {"hostPath": {"path": path, "type": "DirectoryOrCreate"}}
    pod = _pod(name, image, ["python", "-c", program, argument], source)
    pod["spec"]["nodeName"] = node["metadata"]["name"]
    return pod


def _pod(name: str, image: str, command: list[str], source: Json) -> Json:
    """As root: the folders on the node are root's."""
    container = {
        "name": "volume",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "volume", "mountPath": "/volume"}],
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [{"name": "volume", **source}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": OURS}, "spec": spec}
