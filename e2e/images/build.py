"""Builds images, reusing what is unchanged: finished archives by the key of their inputs, else buildah's layers.

A build has two passes. The first goes up to the stage that needs packages from elsewhere, with this machine's pip
configuration and certificates mounted. The second, without any of it, takes those stages from the layer cache and makes
the image: mount points of the first would otherwise stay in it as empty folders.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from caches import alone
from cluster import packages
from cluster.commands import ClusterError, Progress, run

from images import pip_settings
from images.base import PUBLIC_SOURCE, ensure_base
from images.layout import REPOSITORY, Layout
from images.recipes import RECIPES, Recipe
from images.storage import Storage

REVISION_LABEL = "org.opencontainers.image.revision"
SOURCE_LABEL = "org.opencontainers.image.source"
UNKNOWN = "unknown"
"""The revision of sources that git knows nothing of."""


def build(names: Iterable[str], layout: Layout, out: Path | None, progress: Progress) -> Mapping[str, Path]:
    """Writes NAME.tar into `out` (default: the cache's) for each name; returns where they are.

    Raises ClusterError, with a sentence, for what this machine lacks and for a build that fails.
    """
    recipes = [RECIPES[name] for name in names]
    target = (out or layout.out).resolve()
    target.mkdir(parents=True, exist_ok=True)
    with alone(layout.lock, lambda: progress.say("Waiting for another build of images")):
        _require_tools(progress)
        storage = Storage(layout.storage)
        base = ensure_base(storage, layout, progress)
        named = labels(REPOSITORY)
        has_revision = named[REVISION_LABEL] != UNKNOWN
        if not has_revision:
            progress.say(f"No git, or no checkout of its own: the images' {REVISION_LABEL} is {UNKNOWN!r}")
        written, any_built = {}, False
        for recipe in recipes:
            with tempfile.TemporaryDirectory(prefix="fairlead-image-") as folder:
                context = snapshot(recipe, REPOSITORY, Path(folder) / "context")
                key = recipe.key(context, base, has_revision=has_revision)
                archive = layout.archives / f"{recipe.name}-{key}.tar"
                if archive.exists():
                    progress.say(f"{recipe.tag}: unchanged")
                else:
                    _build(recipe, storage, context, named, archive, progress)
                    _forget_older(archive, recipe)
                    any_built = True
            written[recipe.name] = publish(archive, target / f"{recipe.name}.tar")
        if any_built:
            _remove_dangling(storage, progress)
        return written


def snapshot(recipe: Recipe, repository: Path, folder: Path) -> Path:
    """Copies what the image is built from: both passes and the key must see the same files, whoever edits them."""
    for path in recipe.files(repository):
        copy = folder / path.relative_to(repository)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    return folder


def publish(archive: Path, place: Path) -> Path:
    """Makes `place` the archive, without a moment in which it is half of one; a hard link where that is possible."""
    if place.exists() and place.samefile(archive):
        return place
    partial = place.with_name(f"{place.name}.part")
    partial.unlink(missing_ok=True)
    try:
        partial.hardlink_to(archive)
    except OSError:
        shutil.copyfile(archive, partial)
    partial.replace(place)
    return place


def revision(repository: Path) -> str:
    """The commit that the sources are of, `-dirty` with uncommitted changes; UNKNOWN without git, or outside a checkout
    (the sources of an archive may lie in somebody else's)."""
    try:
        top = Path(run("git", "-C", repository, "rev-parse", "--show-toplevel").strip())
        if top.resolve() != repository.resolve():
            return UNKNOWN
        commit = run("git", "-C", repository, "rev-parse", "HEAD").strip()
        dirty = run("git", "-C", repository, "status", "--porcelain").strip()
    except ClusterError:
        return UNKNOWN
    return commit + ("-dirty" if dirty else "")


def labels(repository: Path) -> dict[str, str]:
    """Where the sources come from, as far as git tells: revision and address."""
    found = {REVISION_LABEL: revision(repository)}
    if found[REVISION_LABEL] == UNKNOWN:
        return found
    try:
        address = run("git", "-C", repository, "config", "remote.origin.url").strip()
    except ClusterError:
        return found
    # Nothing but a public address: a path or a user name is nobody's business.
    if address.startswith("https://") and "@" not in address:
        found[SOURCE_LABEL] = address.removesuffix(".git")
    return found


def _build(
    recipe: Recipe, storage: Storage, context: Path, named: Mapping[str, str], archive: Path, progress: Progress
) -> None:
    """Writes `archive`. `named`: the labels of an image that has our packages in it."""
    progress.say(f"{recipe.tag}: building")
    common: list[str | Path] = [
        "bud", "--quiet", "--isolation", "chroot", "--pull-never", "--network", "host", "--layers",
        "--timestamp", os.environ.get("SOURCE_DATE_EPOCH", "0"), "--identity-label=false",
        "--file", context / recipe.dockerfile,
    ]  # fmt: skip
    common += [word for key, value in recipe.arguments.items() for word in ("--build-arg", f"{key}={value}")]
    with tempfile.TemporaryDirectory(prefix="fairlead-image-") as temporary:
        folder = Path(temporary)
        if recipe.packages_stage is None:
            storage.buildah(*common, *_debian(folder), "--tag", recipe.reference, context)
        else:
            secrets, mounts = _pip(folder)
            stage = ("--target", recipe.packages_stage, "--tag", f"localhost/build/{recipe.name}")
            storage.buildah(*common, *secrets, *mounts, *stage, context)
            progress.say(f"{recipe.tag}: packages installed")
            told = [word for key, value in named.items() for word in ("--label", f"{key}={value}")]
            storage.buildah(*common, *_no_index(folder), *told, "--tag", recipe.reference, context)
    storage.export(recipe.reference, archive)
    progress.say(f"{recipe.tag}: {archive.stat().st_size / 1e6:.0f} MB")


def _pip(folder: Path) -> tuple[list[str], list[str]]:
    """buildah's options for this machine's pip configuration: the secrets, and the folders to mount."""
    settings = pip_settings.of_this_machine()
    configuration = folder / "pip.conf"
    configuration.touch(mode=0o600)
    configuration.write_text(settings.text)
    secrets = ["--secret", f"id=pip.conf,src={configuration}"]
    if settings.certificates is not None:
        secrets += ["--secret", f"id=ca.crt,src={settings.certificates.resolve()}"]
    mounts = [word for here, inside in settings.mounts.items() for word in ("--volume", f"{here}:{inside}:ro")]
    return secrets, mounts


def _no_index(folder: Path) -> list[str]:
    """buildah's options for the pass that installs nothing: should a layer be missing, it fails at once."""
    configuration = folder / "no-index.conf"
    configuration.write_text("[global]\nno-index = true\n")
    return ["--secret", f"id=pip.conf,src={configuration}"]


def _debian(folder: Path) -> list[str]:
    """buildah's options for apt inside a build: this machine's mirror in place of the public one (the file exists)."""
    listing = folder / "sources.list"
    listing.write_text(PUBLIC_SOURCE.replace("http://deb.debian.org/debian", packages.mirror()))
    return ["--volume", f"{listing}:/etc/apt/sources.list:ro"]


def _require_tools(progress: Progress) -> None:
    """Installs buildah and mmdebstrap where that is possible, and says what to do where it is not."""
    lacking = packages.missing(packages.IMAGE_TOOLS)
    if os.geteuid() != 0:
        raise ClusterError("Building images needs root: buildah mounts and changes owners. Run it with sudo.")
    if not lacking:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"This machine has no {' and no '.join(lacking)}, and no apt-get to install it with.")
    progress.say(f"Installing {', '.join(lacking)}")
    packages.install(packages.IMAGE_TOOLS)


def _remove_dangling(storage: Storage, progress: Progress) -> None:
    """Every build leaves the layers of the one before without a name: gigabytes after a few."""
    removed = storage.remove_dangling()
    if removed is None:
        progress.say("Containers run from the build cache, so what no tag leads to stays in it for now")
    elif removed:
        progress.say(f"Removed from the build cache, where no tag leads to them: {', '.join(removed)}")


def _forget_older(archive: Path, recipe: Recipe) -> None:
    """One archive per image is kept: each is hundreds of megabytes."""
    for other in archive.parent.glob(f"{recipe.name}-{'?' * 16}.tar"):
        if other != archive:
            other.unlink()
