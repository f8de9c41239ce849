"""buildah with a storage of its own: layers, images and working containers of this cache, and nobody else's."""

import json
import os
from pathlib import Path

from caches import unused
from cluster.commands import run


class Storage:
    """The images below one folder. Needs root, and a file system that overlayfs can lie on."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        """Who starts containers from its images says so with `caches.using`."""
        self.configuration = folder / "storage.conf"
        settings = {"driver": "overlay", "graphroot": str(folder / "layers"), "runroot": str(folder / "run")}
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
        self.configuration.write_text("[storage]\n" + "".join(lines))

    def buildah(self, *arguments: str | Path, timeout: float | None = None) -> str:
        """Runs buildah here and returns what it prints. Raises ClusterError with its last lines."""
        environment = {**os.environ, "CONTAINERS_STORAGE_CONF": str(self.configuration)}
        return run("buildah", *arguments, env=environment, timeout=timeout)

    def identity(self, tag: str) -> str | None:
        """The digest of an image's configuration; None where there is no such image."""
        images = json.loads(self.buildah("images", "--json", "--no-trunc") or "null") or []
        wanted = next((image for image in images if tag in (image.get("names") or ())), None)
        return str(wanted["id"]) if wanted else None

    def remove_dangling(self) -> list[str] | None:
        """Removes containers that killed builds left, and images that no tag leads to; returns a word for each.

        None, and nothing is removed, while somebody uses containers. The caller sees to it that nobody builds.
        """
        with unused(self.folder) as free:
            if not free:
                return None
            containers = self.buildah("containers", "--quiet", "--notruncate").split()
            if containers:
                self.buildah("rm", *containers)
            images = self.buildah("rmi", "--prune").split()
        return [f"container {name[:12]}" for name in containers] + [f"image {name[:12]}" for name in images]

    def export(self, tag: str, archive: Path) -> None:
        """Writes an image as a docker-archive that carries its tag; the file appears whole or not at all."""
        archive.parent.mkdir(parents=True, exist_ok=True)
        partial = archive.with_name(f"{archive.name}.part")
        partial.unlink(missing_ok=True)
        self.buildah("push", "--quiet", tag, f"docker-archive:{partial}:{tag}")
        partial.replace(archive)
