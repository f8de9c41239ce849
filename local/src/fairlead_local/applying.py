"""Calls of commands to the API of a running fleet: reading objects and logs, and `up -f`.

`up -f` applies files like `kubectl apply --validate=strict`, and kubectl can go on afterwards. Fields removed from a
file are removed from the object, by the annotation in which kubectl, too, keeps the last applied configuration.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

import yaml

from fairlead.kube.client import JSON, MERGE_PATCH, KubeClient, KubeError
from fairlead.kube.kubeconfig import KubeConfigError, load
from fairlead_local.apiserver.status import Json
from fairlead_local.fleet_state import FleetError

_TIMEOUT_SECONDS = 5.0
_CHUNK_BYTES = 65_536


class ApiReader:
    """Reads with the credentials of a kubeconfig. Raises FleetError with the server's own sentence."""

    def __init__(self, kubeconfig: Path) -> None:
        try:
            config = load(kubeconfig)
        except KubeConfigError as error:
            raise FleetError(str(error)) from error
        self._server = config.server
        self._headers = {"Authorization": f"Bearer {config.token}"}
        self._opener = build_opener(ProxyHandler({}))  # the API is on this machine, whatever proxies there are

    def objects(self, path: str, **query: str) -> list[Json]:
        """The items of a list."""
        with self._open(path, query, _TIMEOUT_SECONDS) as response:
            found: list[Json] = json.load(response)["items"]
            return found

    def text(self, path: str, **query: str) -> Iterator[bytes]:
        """The chunks of a text, until its end."""
        with self._open(path, query, None) as response:
            while chunk := response.read1(_CHUNK_BYTES):
                yield chunk

    @contextmanager
    def _open(self, path: str, query: dict[str, str], timeout: float | None) -> Iterator[HTTPResponse]:
        url = f"{self._server}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            with self._opener.open(Request(url, headers=self._headers), timeout=timeout) as response:
                yield response
        except HTTPError as error:
            with suppress(ValueError, KeyError, TypeError):
                raise FleetError(json.loads(error.read())["message"]) from error
            raise FleetError(str(error)) from error
        except HTTPException as error:
            raise FleetError("the fleet ended meanwhile: its API server left in the middle of an answer") from error
        except OSError as error:
            raise FleetError(f"the API server does not answer: {error}") from error


PARAMETERS = {"fieldManager": "kubectl-client-side-apply", "fieldValidation": "Strict"}
"""Query of writes, with the manager of kubectl: a later `kubectl apply --server-side` takes the fields over."""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class FileManifest:
    """One object, and the file it was read from."""

    file: Path
    object: Json

    @property
    def readable(self) -> str:
        return f"{self.object['kind'].lower()}/{self.object['metadata']['name']}"


def read_manifests(files: Sequence[Path]) -> list[FileManifest]:
    """Every object in the files, Lists unpacked. Raises FleetError, naming the file."""
    found = []
    for file in files:
        try:
            documents = [each for each in yaml.safe_load_all(file.read_text(encoding="utf-8")) if each is not None]
        except OSError as error:
            raise FleetError(f"cannot read {file}: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise FleetError(f"{file} is not YAML: {error}") from error
        for document in documents:
            is_list = isinstance(document, dict) and document.get("kind") == "List"
            for obj in (document.get("items") or ()) if is_list else (document,):
                if not isinstance(obj, dict) or not obj.get("apiVersion") or not obj.get("kind"):
                    raise FleetError(f"{file}: every document needs apiVersion and kind")
                if not (obj.get("metadata") or {}).get("name"):
                    raise FleetError(f"{file}: {obj['kind']} without metadata.name")
                found.append(FileManifest(file, obj))
    return found


async def apply_manifest(client: KubeClient, manifest: FileManifest) -> None:
    """Raises FleetError with the server's own sentence."""
    try:
        collection, wanted = await _address(client, manifest)
        path = f"{collection}/{wanted['metadata']['name']}"
        try:
            live = await client.request("GET", path)
        except KubeError as error:
            if error.status != 404:
                raise
            await client.request("POST", collection, params=PARAMETERS, body=wanted, content_type=JSON)
            return
        before = json.loads((live["metadata"].get("annotations") or {}).get(LAST_APPLIED) or "{}")
        patch = three_way_patch(before, wanted, live)
        await client.request("PATCH", path, params=PARAMETERS, body=patch, content_type=MERGE_PATCH)
    except KubeError as error:
        raise FleetError(f"{manifest.file}: {manifest.readable}: {error.message}") from error


def three_way_patch(before: Mapping[str, Any], wanted: Mapping[str, Any], live: Mapping[str, Any]) -> Json:
    """The merge patch (RFC 7386) from `live` to `wanted`, which removes fields of `before` that are no longer wanted.

    Fields in neither `before` nor `wanted` stay. Lists are replaced as a whole.
    """
    patch: Json = {key: None for key in before if key not in wanted and key in live}
    for key, value in wanted.items():
        old, now = before.get(key), live.get(key)
        if isinstance(value, dict) and isinstance(now, dict):
            if inner := three_way_patch(old if isinstance(old, dict) else {}, value, now):
                patch[key] = inner
        elif value != now:
            patch[key] = value
    return patch


async def _address(client: KubeClient, manifest: FileManifest) -> tuple[str, Json]:
    """The path of the kind's collection, and the object as it is sent: with its namespace and the annotation."""
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
    metadata = {"annotations": {}} | metadata
    folder = root
    if resource["namespaced"]:
        metadata = {"namespace": "default"} | metadata
        folder = f"{root}/namespaces/{metadata['namespace']}"
    annotations = {key: value for key, value in (metadata["annotations"] or {}).items() if key != LAST_APPLIED}
    plain = {**obj, "metadata": {**metadata, "annotations": annotations}}
    annotations = {**annotations, LAST_APPLIED: json.dumps(plain, separators=(",", ":")) + "\n"}
    return f"{folder}/{resource['name']}", {**plain, "metadata": {**metadata, "annotations": annotations}}
