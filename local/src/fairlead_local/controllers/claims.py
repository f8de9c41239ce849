"""PersistentVolumeClaims: every claim gets a folder, which is kept when the claim goes: it may hold models."""

from collections.abc import Iterable
from pathlib import Path

from fairlead_local.apiserver.operations import Operations, WriteOptions
from fairlead_local.apiserver.resources import CLAIMS
from fairlead_local.apiserver.store import Change, ChangeType
from fairlead_local.controllers.events import ObjectEvents
from fairlead_local.controllers.loop import Key

STORAGE_CLASS = "local-folder"


class ClaimController:
    """Binds claims to `folder/NAMESPACE/CLAIM`. A claim of a storage class nobody here provides stays pending."""

    def __init__(self, operations: Operations, folder: Path) -> None:
        self._operations = operations
        self._folder = folder
        self._recorder = ObjectEvents(operations, "persistentvolume-controller")
        self._options = WriteOptions(manager="persistentvolume-controller")

    def keys(self, change: Change) -> Iterable[Key]:
        if change.resource == CLAIMS.qualified and change.type is not ChangeType.DELETED:
            yield change.object["metadata"]["namespace"], change.object["metadata"]["name"]

    def reconcile(self, key: Key) -> float | None:
        namespace, name = key
        claim = self._operations.find(CLAIMS, namespace, name)
        if claim is None or "deletionTimestamp" in claim["metadata"]:
            return None
        if (claim.get("status") or {}).get("phase") == "Bound":
            return None
        storage_class = claim["spec"].get("storageClassName") or STORAGE_CLASS
        if storage_class != STORAGE_CLASS:
            text = f'storageclass.storage.k8s.io "{storage_class}" not found: local mode has "{STORAGE_CLASS}" only'
            self._recorder.warning(claim, "ProvisioningFailed", text)
            self._operations.set_status(CLAIMS, claim, {"phase": "Pending"}, self._options)
            return None
        claim_folder(self._folder, namespace, name).mkdir(parents=True, exist_ok=True)
        spec = {**claim["spec"], "volumeName": f"pvc-{claim['metadata']['uid']}", "storageClassName": storage_class}
        claim = self._operations.update(CLAIMS, namespace, name, {**claim, "spec": spec}, self._options).object
        requests = (spec.get("resources") or {}).get("requests") or {}
        status = {"phase": "Bound", "accessModes": spec.get("accessModes") or [], "capacity": requests}
        self._operations.set_status(CLAIMS, claim, status, self._options)
        return None


def claim_folder(folder: Path, namespace: str, name: str) -> Path:
    """Where the files of a claim are."""
    return folder / namespace / name
