"""What a registry keeps, by the OCI image specification: blobs, their descriptors, and the manifests that name them.

https://github.com/opencontainers/image-spec
"""

import gzip
import hashlib
import json
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
NOTHING = "application/vnd.oci.empty.v1+json"
_LEVEL = 6
"""Of gzip."""


@dataclass(frozen=True)
class Blob:
    """Content in memory, or in a file."""

    media_type: str
    content: bytes | Path
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    @property
    def digest(self) -> str:
        if isinstance(self.content, bytes):
            return digest_of(self.content)
        with self.content.open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"

    def descriptor(self) -> dict[str, Any]:
        """How a manifest names it."""
        told = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        return told | ({"annotations": dict(self.annotations)} if self.annotations else {})


EMPTY = Blob(NOTHING, b"{}")
"""The configuration of what has none."""


@dataclass(frozen=True)
class Artifact:
    """A manifest and the blobs that it names."""

    config: Blob
    layers: tuple[Blob, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)
    artifact_type: str | None = None
    subject: Mapping[str, Any] | None = None
    """Descriptor of the manifest that it is about."""

    def manifest(self) -> Blob:
        """The same content for the same blobs."""
        told: dict[str, Any] = {"schemaVersion": 2, "mediaType": MANIFEST}
        if self.artifact_type is not None:
            told["artifactType"] = self.artifact_type
        told["config"] = self.config.descriptor()
        told["layers"] = [each.descriptor() for each in self.layers]
        if self.subject is not None:
            told["subject"] = dict(self.subject)
        if self.annotations:
            told["annotations"] = dict(self.annotations)
        return Blob(MANIFEST, json.dumps(told, separators=(",", ":")).encode())


def digest_of(content: bytes) -> str:
    """As registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def image_of(archive: Path, folder: Path) -> Artifact:
    """The image of a docker-archive, with its layers compressed into `folder`: the same archive gives the same digest.
    Labels of org.opencontainers.image are the manifest's annotations, too."""
    with tarfile.open(archive) as opened:
        (told,) = json.loads(_read(opened, "manifest.json"))
        config = _read(opened, told["Config"])
        layers = [_compressed(opened, name, folder / f"{number}.tar.gz") for number, name in enumerate(told["Layers"])]
    labels = json.loads(config)["config"].get("Labels") or {}
    named = {name: value for name, value in sorted(labels.items()) if name.startswith("org.opencontainers.image.")}
    return Artifact(Blob(CONFIG, config), tuple(Blob(LAYER, path) for path in layers), named)


def _compressed(opened: tarfile.TarFile, name: str, path: Path) -> Path:
    layer = opened.extractfile(name)
    assert layer is not None, name
    with (
        layer,
        path.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=file, mtime=0) as packed,
    ):
        shutil.copyfileobj(layer, packed, 1 << 20)
    return path


def _read(opened: tarfile.TarFile, name: str) -> bytes:
    member = opened.extractfile(name)
    assert member is not None, name
    return member.read()
