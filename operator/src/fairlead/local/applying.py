"""`up -f`: files of objects, applied as `kubectl apply --server-side --validate=strict` would."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from fairlead.kube.client import APPLY_PATCH, KubeClient, KubeError
from fairlead.local.apiserver.status import Json
from fairlead.local.fleet_state import FleetError

FIELD_MANAGER = "kubectl"
"""As kubectl's own, so that a later `kubectl apply --server-side` of the same file conflicts with nothing."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object, and the file it was read from."""

    file: Path
    object: Json

    @property
    def readable(self) -> str:
        return f"{self.object['kind'].lower()}/{self.object['metadata']['name']}"


def read_manifests(files: Sequence[Path]) -> list[Manifest]:
    """Every object in the files, Lists unpacked. Raises FleetError, naming the file."""
    found = []
    for file in files:
        try:
            documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
        except OSError as error:
            raise FleetError(f"cannot read {file}: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise FleetError(f"{file} is not YAML: {error}") from error
        objects = [obj for document in documents if document is not None for obj in _unpacked(document)]
        for obj in objects:
            _check(file, obj)
        found += [Manifest(file, obj) for obj in objects]
    return found


async def apply_manifest(client: KubeClient, manifest: Manifest) -> None:
    """Raises FleetError with the server's own sentence."""
    obj = manifest.object
    try:
        path = await _path(client, manifest)
        params = {"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"}
        await client.request("PATCH", path, params=params, body=obj, content_type=APPLY_PATCH)
    except KubeError as error:
        raise FleetError(f"{manifest.file}: {manifest.readable}: {error.message}") from error


async def _path(client: KubeClient, manifest: Manifest) -> str:
    obj = manifest.object
    version, kind, metadata = obj["apiVersion"], obj["kind"], obj["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    try:
        served = (await client.request("GET", root))["resources"]
    except KubeError as error:
        if error.status != 404:
            raise
        served = []
    resource = next((r for r in served if r["kind"] == kind and "/" not in r["name"]), None)
    if resource is None:
        text = f'no matches for kind "{kind}" in version "{version}": local mode does not serve it'
        raise FleetError(f"{manifest.file}: {text}")
    namespace = f"/namespaces/{metadata.get('namespace', 'default')}" if resource["namespaced"] else ""
    return f"{root}{namespace}/{resource['name']}/{metadata['name']}"


def _unpacked(document: Json) -> list[Json]:
    if isinstance(document, dict) and document.get("kind") == "List":
        return list(document.get("items") or [])
    return [document]


def _check(file: Path, obj: Json) -> None:
    if not isinstance(obj, dict) or not obj.get("apiVersion") or not obj.get("kind"):
        raise FleetError(f"{file}: every document needs apiVersion and kind")
    if not (obj.get("metadata") or {}).get("name"):
        raise FleetError(f"{file}: {obj['kind']} without metadata.name")
