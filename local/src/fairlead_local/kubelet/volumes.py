"""Volumes as folders below the folder of the pod, found by path translation.

Without mount namespaces, the process of a container sees the machine's files; translated paths in command, arguments
and environment lead to the volumes.
"""

from collections.abc import Mapping
from pathlib import Path

from fairlead_local.apiserver.operations import Operations
from fairlead_local.apiserver.resources import CLAIMS, CONFIG_MAPS, SECRETS
from fairlead_local.apiserver.status import Json
from fairlead_local.kubelet.environment import ContainerConfigError, contents

_CONTENTS = {"configMap": (CONFIG_MAPS, "name"), "secret": (SECRETS, "secretName")}
"""Kind of a volume with files of an object → resource, and the field with the name of the object."""
_SUPPORTED = ("emptyDir", "configMap", "secret", "persistentVolumeClaim", "hostPath")
_HOST_PATH_TYPES = ("", "Directory", "DirectoryOrCreate")


class MountError(ContainerConfigError):
    """A volume cannot be set up (yet)."""


class _Unmountable(Exception):
    """The text says why."""


class PodVolumes:
    """The volumes of one pod below `folder`; claims live in `claims`, which outlives the pod."""

    def __init__(self, operations: Operations, pod: Json, folder: Path, claims: Path) -> None:
        self._operations = operations
        self._pod = pod
        self._folder = folder
        self._claims = claims

    def set_up(self) -> None:
        """Lays every volume out, or brings it up to date. Raises MountError at the first problem."""
        for volume in self._pod["spec"].get("volumes") or ():
            try:
                self._set_up(volume)
            except (OSError, _Unmountable) as error:
                raise MountError(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}') from error

    def mounts(self, container: Json) -> dict[str, str]:
        """Mount path → folder, for one container."""
        volumes = {volume["name"]: volume for volume in self._pod["spec"].get("volumes") or ()}
        found = {}
        for mount in container.get("volumeMounts") or ():
            folder = self._location(volumes[mount["name"]])
            inside = (folder / mount.get("subPath", "")).resolve()
            if not inside.is_relative_to(folder.resolve()):
                raise MountError(f'subPath "{mount["subPath"]}" of volume "{mount["name"]}" leads out of the volume')
            found[mount["mountPath"]] = str(inside)
        return found

    def uses(self, kind: str, name: str) -> bool:
        """Whether a ConfigMap (`configMap`) or Secret (`secret`) of this name is mounted."""
        volumes = self._pod["spec"].get("volumes") or ()
        return any((volume.get(kind) or {}).get(_CONTENTS[kind][1]) == name for volume in volumes)

    def _location(self, volume: Json) -> Path:
        if claim := volume.get("persistentVolumeClaim"):
            return self._claims / str(self._pod["metadata"]["namespace"]) / str(claim["claimName"])
        if source := volume.get("hostPath"):
            return Path(source["path"])
        return self._folder / str(volume["name"])

    def _set_up(self, volume: Json) -> None:
        folder, namespace = self._location(volume), self._pod["metadata"]["namespace"]
        if kind := next((each for each in _CONTENTS if volume.get(each)), None):
            (resource, field), source = _CONTENTS[kind], volume[kind]
            content = contents(self._operations, resource, namespace, source.get(field, ""))
            if content is None and not source.get("optional"):
                raise _Unmountable(f'{kind.lower()} "{source.get(field, "")}" not found')
            _write_files(folder, source, content or {})
        elif source := volume.get("persistentVolumeClaim"):
            if self._operations.find(CLAIMS, namespace, source["claimName"]) is None:
                raise MountError(f'persistentvolumeclaim "{source["claimName"]}" not found')
            folder.mkdir(parents=True, exist_ok=True)
        elif source := volume.get("hostPath"):
            kind = source.get("type") or ""
            if kind not in _HOST_PATH_TYPES:
                text = f"local mode knows hostPath volumes of type Directory and DirectoryOrCreate, not {kind}"
                raise _Unmountable(text)
            if kind == "DirectoryOrCreate":
                folder.mkdir(parents=True, exist_ok=True)
            if kind and not folder.is_dir():
                raise _Unmountable(f"hostPath type check failed: {folder} is not a directory")
        elif "emptyDir" in volume or volume.keys() == {"name"}:
            folder.mkdir(parents=True, exist_ok=True)
        else:
            kind = next(field for field in volume if field != "name")
            raise _Unmountable(f"local mode does not support {kind} volumes; it has {', '.join(_SUPPORTED)}")


def _write_files(folder: Path, source: Json, content: Mapping[str, bytes]) -> None:
    """The files of a ConfigMap or Secret; each file appears whole, and files of removed keys disappear."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {key: (key, None) for key in content}
    if items := source.get("items"):
        wanted = {item["path"]: (item["key"], item.get("mode")) for item in items}
    for path, (key, mode) in wanted.items():
        if key in content:
            _replace(folder / path, content[key], mode or source.get("defaultMode", 0o644))
        elif not source.get("optional"):
            raise _Unmountable(f"references non-existent config key: {key}")
    for present in [found for found in folder.rglob("*") if found.is_file()]:
        if str(present.relative_to(folder)) not in wanted:
            present.unlink()


def _replace(path: Path, content: bytes, mode: int) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(content)
    fresh.chmod(mode)
    fresh.replace(path)
