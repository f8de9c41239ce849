"""What a release puts into a registry: each image with its bill of materials and provenance, and the chart with its
own. A version that is there already with other content is never replaced."""

import asyncio
import gzip
import io
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml
from cluster.commands import ClusterError, Progress
from images.archive import ImageArchive
from images.build import REVISION_LABEL, UNKNOWN, labels, revision
from images.layout import REPOSITORY, Layout
from images.recipes import BASE, RECIPES
from images.storage import Storage

from fairlead import __version__
from fairlead.api import names
from release import bill
from release import provenance as origin
from release.blobs import Artifact, Blob, image_of
from release.registry import Repository, about

CHART = REPOSITORY / "charts" / "fairlead"
_CHART_CONFIG = "application/vnd.cncf.helm.config.v1+json"
_CHART_CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_PLACE = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")


def checked_registry(registry: str) -> str:
    """HOST or HOST/FOLDER. Raises ClusterError for anything else."""
    if not _PLACE.fullmatch(registry):
        raise ClusterError(
            f"REGISTRY={registry!r} is no place in a registry: write HOST or HOST/FOLDER in lower case, such as "
            "registry.example.com/team"
        )
    return registry


def checked_revision(repository: Path = REPOSITORY) -> str:
    """The commit that is released. Raises ClusterError where the sources are not those of a commit."""
    found = revision(repository)
    if found == UNKNOWN:
        raise ClusterError("A release is made of a commit, and this is no checkout of git: clone the repository")
    if found.endswith("-dirty"):
        raise ClusterError("A release is made of a commit: commit or put away what `git status` shows")
    return found


def check_tag(tag: str, repository: Path = REPOSITORY) -> None:
    """Raises ClusterError unless a tag of git is that of the version that programs and chart say."""
    chart = yaml.safe_load((repository / "charts" / "fairlead" / "Chart.yaml").read_text())
    told = {"the programs": __version__} | {f"Chart.yaml's {name}": chart[name] for name in ("version", "appVersion")}
    if wrong := {what: version for what, version in told.items() if tag != f"v{version}"}:
        said = ", ".join(f"{what} {version}" for what, version in wrong.items())
        raise ClusterError(f"The tag is {tag}, and not that of {said}: count all of them up, or name another tag")


def push_image(registry: str, name: str, archive: Path, base: str | None, progress: Progress) -> str:
    """Pushes one image by its archive; returns its name with the digest. `base`: the identity of the base image; None =
    not known."""
    recipe, read = RECIPES[name], ImageArchive(archive)
    repository, _, version = recipe.tag.partition(":")
    commit = read.config["Labels"][REVISION_LABEL]
    if commit == UNKNOWN or commit.endswith("-dirty"):
        raise ClusterError(
            f"{recipe.tag} was built before what it is made of was committed: remove {Layout.default().archives}, and "
            "push again"
        )
    with tempfile.TemporaryDirectory(prefix="fairlead-push-") as temporary:
        artifact = image_of(archive, Path(temporary))
        documents = {
            f"{name}.cdx.json": (bill.TYPE, bill.bill_of_materials(read, repository, version, progress)),
            f"{name}.intoto.json": (
                origin.TYPE,
                origin.provenance(
                    f"{registry}/{repository}",
                    artifact.manifest().digest,
                    "images",
                    {"dockerfile": recipe.dockerfile, "arguments": dict(recipe.arguments)},
                    _sources(commit) | ({} if base is None else {BASE: f"sha256:{base.removeprefix('sha256:')}"}),
                ),
            ),
        }
        return asyncio.run(_pushed(registry, repository, version, artifact, documents, progress))


def push_chart(registry: str, progress: Progress) -> str:
    """Pushes the chart, whose default images are those of the registry; returns its name with the digest."""
    commit = checked_revision()
    with tempfile.TemporaryDirectory(prefix="fairlead-chart-") as temporary:
        archive, described = packaged(registry, Path(temporary))
        config = Blob(_CHART_CONFIG, json.dumps(described).encode())
        named = {
            "org.opencontainers.image.title": str(described["name"]),
            "org.opencontainers.image.version": str(described["version"]),
            "org.opencontainers.image.description": str(described["description"]),
            REVISION_LABEL: commit,
        }
        artifact = Artifact(config, (Blob(_CHART_CONTENT, archive),), named)
        repository, version = f"charts/{described['name']}", str(described["version"])
        document = origin.provenance(
            f"{registry}/{repository}", artifact.manifest().digest, "chart", {"registry": registry}, _sources(commit)
        )
        documents = {"chart.intoto.json": (origin.TYPE, document)}
        return asyncio.run(_pushed(registry, repository, version, artifact, documents, progress))


def packaged(registry: str, folder: Path) -> tuple[bytes, Mapping[str, object]]:
    """The chart as an archive, and its Chart.yaml."""
    import helm_python  # 244 MB, which images do without

    copy = folder / "fairlead"
    shutil.copytree(CHART, copy)
    values = copy / "values.yaml"
    text = values.read_text()
    for image in (names.OPERATOR_IMAGE, names.ENGINE_IMAGE):
        before = f"\n  repository: {image}\n"
        if text.count(before) != 1:
            raise ClusterError(f"{CHART}/values.yaml does not name {image} once")
        text = text.replace(before, f"\n  repository: {registry}/{image}\n")
    values.write_text(text)
    path = helm_python.package(copy, destination=folder)
    with helm_python.Chart.load(path) as chart:
        return _without_times(Path(path)), chart.metadata


def _without_times(path: Path) -> bytes:
    """The same archive, whenever it was made."""
    packed = io.BytesIO()
    with (
        tarfile.open(path) as made,
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as written,
    ):
        for member in made:
            member.mtime, member.pax_headers = 0, {}
            written.addfile(member, made.extractfile(member))
    return packed.getvalue()


async def _pushed(
    registry: str,
    repository: str,
    version: str,
    artifact: Artifact,
    documents: Mapping[str, tuple[str, bytes]],
    progress: Progress,
) -> str:
    """Documents come first: whoever finds the version finds them, too."""
    async with Repository(registry, repository) as place:
        manifest = artifact.manifest()
        there = await place.digest(version)
        if there not in (None, manifest.digest):
            raise ClusterError(
                f"{place.name}:{version} is there with other content ({there}): a version is released once, so count "
                "the version up"
            )
        subject = await place.push(artifact)
        for title, (media_type, content) in documents.items():
            told = await place.push(about(subject, media_type, content, title))
            progress.say(f"{place.name}@{told['digest']}: {title}")
        await place.push(artifact, version)
        progress.say(f"{place.name}:{version}: {subject['digest']}")
        return f"{place.name}:{version}@{subject['digest']}"


def _sources(commit: str) -> dict[str, str]:
    """The commit, by the public address of its repository as far as there is one."""
    address = labels(REPOSITORY).get("org.opencontainers.image.source")
    return {f"git+{address}" if address else "git+local": f"gitCommit:{commit}"}


def base_image() -> str | None:
    """Identity of the base that images were built on here; None = it is not here any more."""
    return Storage(Layout.default().storage).identity(BASE) if shutil.which("buildah") else None
