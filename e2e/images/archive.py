"""A container image in a docker-archive, read without any container tool: its configuration and its files.

Layers are laid over one another as a container runtime does it: a whiteout removes what lies below.
"""

import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"


@dataclass(frozen=True)
class Entry:
    """One file, folder or link of an image; `path` has no leading slash."""

    path: str
    kind: bytes
    """tarfile's type: REGTYPE, DIRTYPE, SYMTYPE …"""
    mode: int
    uid: int
    gid: int
    size: int
    link: str
    layer: int
    """Counted from the base."""


class ImageArchive:
    """One image. Raises KeyError or tarfile.ReadError for what is not a docker-archive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with tarfile.open(path) as archive:
            manifest = json.load(_member(archive, "manifest.json"))[0]
            self.tags: list[str] = manifest["RepoTags"]
            self._layers: list[str] = manifest["Layers"]
            self.document: Mapping[str, Any] = json.load(_member(archive, manifest["Config"]))
            """The whole configuration: `config`, `history`, `rootfs`."""
            self.layer_bytes = [archive.getmember(layer).size for layer in self._layers]

    @property
    def config(self) -> Mapping[str, Any]:
        """What a container of this image starts with: Env, Entrypoint, User, Labels …"""
        config: Mapping[str, Any] = self.document["config"]
        return config

    @property
    def environment(self) -> dict[str, str]:
        pairs = (variable.partition("=") for variable in self.config.get("Env") or ())
        return {name: value for name, _, value in pairs}

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        """Path → what a container finds there."""
        found: dict[str, Entry] = {}
        with tarfile.open(self.path) as archive:
            for number, layer in enumerate(self._layers):
                with tarfile.open(fileobj=_member(archive, layer)) as content:
                    _lay(found, content, number)
        return found

    def files(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
        """Path and content of the regular files whose paths are wanted. Each layer is read once."""
        found = {path: entry.layer for path, entry in self.entries.items() if wanted(path)}
        with tarfile.open(self.path) as archive:
            for number in sorted(set(found.values())):
                with tarfile.open(fileobj=_member(archive, self._layers[number])) as layer:
                    for member in layer:
                        if found.get(_path(member)) == number and member.isreg():
                            stream = layer.extractfile(member)
                            assert stream is not None
                            yield _path(member), stream.read()

    def read(self, path: str) -> bytes:
        """The content of a regular file. Raises KeyError where there is none."""
        entry = self.entries[path]
        with (
            tarfile.open(self.path) as archive,
            tarfile.open(fileobj=_member(archive, self._layers[entry.layer])) as layer,
        ):
            for member in layer:
                if _path(member) == path and (stream := layer.extractfile(member)) is not None:
                    return stream.read()
        raise KeyError(path)


def _lay(found: dict[str, Entry], layer: tarfile.TarFile, number: int) -> None:
    """Lays one layer over what was found below it. Its whiteouts concern lower layers only, wherever they stand."""
    members = [(_path(member), member) for member in layer]
    for path, _ in members:
        folder, name = PurePosixPath(path).parent, PurePosixPath(path).name
        if name == _OPAQUE:
            _remove_below(found, str(folder))
        elif name.startswith(_WHITEOUT):
            gone = str(folder / name.removeprefix(_WHITEOUT))
            _remove_below(found, gone)
            found.pop(gone, None)
    for path, member in members:
        if path in ("", ".") or PurePosixPath(path).name.startswith(_WHITEOUT):
            continue
        if not member.isdir():
            _remove_below(found, path)
        found[path] = Entry(
            path, member.type, member.mode, member.uid, member.gid, member.size, member.linkname, number
        )


def _remove_below(found: dict[str, Entry], folder: str) -> None:
    if folder == ".":
        found.clear()
    elif folder in found and found[folder].kind == tarfile.DIRTYPE:
        for path in [path for path in found if path.startswith(f"{folder}/")]:
            del found[path]


def _path(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix("./").rstrip("/")


def _member(archive: tarfile.TarFile, name: str) -> Any:
    stream = archive.extractfile(name)
    if stream is None:
        raise KeyError(name)
    return stream
