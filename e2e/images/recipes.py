"""What each image is built from. Pure but for reading the files; the same files give the same key."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairlead import __version__
from fairlead.api import names

BASE = "docker.io/library/python:3.11-slim-bookworm"
SHELL_IMAGE = "local.test/shell:1"
FORMAT = 1
"""Counted up when the way of building changes what comes out."""

_PINS = ("requirements/constraints.txt", "requirements/third_party.py", "requirements/image-build.txt")
_NOT_SOURCES = ("__pycache__", ".egg-info")
"""Parts of paths; .dockerignore leaves the same out."""


@dataclass(frozen=True)
class Recipe:
    """One image: its name here, its tag, its Dockerfile, and what of the repository goes into it."""

    name: str
    tag: str
    dockerfile: str
    packages: tuple[str, ...] = ()
    """Folders with a pyproject.toml whose wheels go in."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """The Dockerfile's build arguments."""
    packages_stage: str | None = None
    """The stage up to which the network is needed; None: the only stage needs it."""

    @property
    def reference(self) -> str:
        """The tag with its registry, which buildah and containerd would otherwise each complete in their own way."""
        return self.tag if "." in self.tag.partition("/")[0] else f"docker.io/{self.tag}"

    def files(self, repository: Path) -> Iterator[Path]:
        """Every file that the image depends on, in a fixed order, as absolute paths."""
        yield repository / self.dockerfile
        if not self.packages:
            return
        yield repository / ".dockerignore"
        yield from (repository / pin for pin in _PINS)
        for package in self.packages:
            yield repository / package / "pyproject.toml"
            yield repository / package / "README.md"
            sources = (path for path in sorted((repository / package / "src").rglob("*")) if path.is_file())
            yield from (
                path for path in sources if not any(word in str(path.relative_to(repository)) for word in _NOT_SOURCES)
            )

    def key(self, repository: Path, base: str, *, has_revision: bool = True) -> str:
        """Sixteen hex digits that change with anything the image is built from; `base` identifies the base image.

        Which revision an image names does not change it, but whether it names one (`has_revision`) does.
        """
        digest = hashlib.sha256(json.dumps([FORMAT, base, self.reference, sorted(self.arguments.items())]).encode())
        for path in self.files(repository):
            content = path.read_bytes()
            digest.update(f"\0{path.relative_to(repository)}\0{path.stat().st_mode & 0o111}\0{len(content)}\0".encode())
            digest.update(content)
        if self.packages and not has_revision:
            digest.update(b"\0no revision\0")
        return digest.hexdigest()[:16]


def _ours(name: str, image: str, folder: str, suffix: str = "", **arguments: str) -> Recipe:
    return Recipe(
        name=name,
        tag=f"{image}:{__version__}{suffix}",
        dockerfile=f"Dockerfile.{folder}",
        packages=("common", folder),
        arguments={"VERSION": __version__, **arguments},
        packages_stage="packages",
    )


RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        _ours("engine", names.ENGINE_IMAGE, "engine", VARIANT="cpu"),
        _ours("engine-cuda", names.ENGINE_IMAGE, "engine", "-cuda", VARIANT="cuda"),
        _ours("operator", names.OPERATOR_IMAGE, "operator"),
        Recipe("shell", SHELL_IMAGE, "e2e/images/Dockerfile.shell"),
    )
}
DEFAULT_IMAGES = ("engine", "operator", "shell")
"""What `build` makes when nobody says: everything a machine without a GPU can run."""
