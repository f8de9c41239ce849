"""A release pushed to a registry on this machine, and read back as others read it."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.commands import ClusterError, Progress
from images.archive import ImageArchive
from release import bill, publishing
from release.__main__ import main
from release.blobs import digest_of

from fairlead import __version__
from fairlead_engine_testing.loopback_registry import LoopbackRegistry, loopback_registry

COMMIT = "a" * 40
SITE = "opt/fairlead/lib/python3.11/site-packages"
DPKG = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2:2.36-9+deb12u1

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1
"""
METADATA = "Metadata-Version: 2.1\nName: {}\nVersion: {}\nLicense: MIT\n"
FILES = {
    "var/lib/dpkg/status": DPKG,
    f"{SITE}/fairlead-{__version__}.dist-info/METADATA": METADATA.format("fairlead", __version__),
    f"{SITE}/rich-15.0.0.dist-info/METADATA": METADATA.format("rich", "15.0.0"),
    f"{SITE}/rich/__init__.py": "raise SystemExit('run, though only metadata is read')",
}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackRegistry]:
    monkeypatch.delenv("GITHUB_RUN_ID", raising=False)
    with loopback_registry(LoopbackRegistry()) as registry:
        yield registry


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the tool that writes bills of materials."""
    monkeypatch.setattr(bill, "bill_of_materials", lambda *_: b'{"bomFormat": "CycloneDX"}')


def tar(files: dict[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in files.items():
            content = text.encode() if isinstance(text, str) else text
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def docker_archive(path: Path, commit: str = COMMIT, **more: str) -> Path:
    """An image of two layers, as `images.build` writes them."""
    layers = [tar({"bin/sh": "#!"}), tar({**FILES, **more})]
    config = {
        "architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": list(map(digest_of, layers))},
        "config": {"User": "1:1", "Labels": {"org.opencontainers.image.revision": commit, "other": "label"}},
    }  # fmt: skip
    manifest = [{"Config": "c.json", "RepoTags": ["a/b:1"], "Layers": ["0.tar", "1.tar"]}]
    named = {"manifest.json": json.dumps(manifest), "c.json": json.dumps(config)}
    path.write_bytes(tar(named | dict(zip(["0.tar", "1.tar"], layers, strict=True))))
    return path


def pushed(registry: LoopbackRegistry, archive: Path, base: str | None = "b" * 64) -> str:
    return publishing.push_image(f"{registry.host}/team", "operator", archive, base, Progress())


def manifest(registry: LoopbackRegistry, reference: str, repository: str = "team/fairlead/operator") -> Any:
    return json.loads(registry.manifests[repository][reference][1])


@pytest.mark.usefixtures("quick")
def test_an_image_arrives_as_it_was_built_with_what_is_in_it_and_where_it_comes_from(
    registry: LoopbackRegistry, tmp_path: Path
) -> None:
    named = pushed(registry, docker_archive(tmp_path / "operator.tar"))
    content = registry.manifests["team/fairlead/operator"][__version__][1]
    digest = digest_of(content)
    assert named == f"{registry.host}/team/fairlead/operator:{__version__}@{digest}"
    told = json.loads(content)
    assert told["annotations"] == {"org.opencontainers.image.revision": COMMIT}
    config = json.loads(registry.blobs[told["config"]["digest"]])
    assert config["config"]["User"] == "1:1"
    layers = [registry.blobs[each["digest"]] for each in told["layers"]]
    assert [digest_of(gzip.decompress(each)) for each in layers] == config["rootfs"]["diff_ids"]
    assert [each["size"] for each in told["layers"]] == [len(each) for each in layers]
    about = {each["artifactType"]: manifest(registry, each["digest"]) for each in registry.referrers[digest]}
    assert set(about) == {"application/vnd.cyclonedx+json", "application/vnd.in-toto+json"}
    statement = json.loads(registry.blobs[about["application/vnd.in-toto+json"]["layers"][0]["digest"]])
    assert statement["subject"] == [
        {"name": f"{registry.host}/team/fairlead/operator", "digest": {"sha256": digest.removeprefix("sha256:")}}
    ]
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["dockerfile"] == "Dockerfile.operator"
    assert {"gitCommit": COMMIT} in [each["digest"] for each in definition["resolvedDependencies"]]
    assert {"sha256": "b" * 64} in [each["digest"] for each in definition["resolvedDependencies"]]
    assert registry.pushed[-1] == __version__, "whoever finds the version finds all of it"


@pytest.mark.usefixtures("quick")
def test_what_is_there_is_not_sent_again_and_a_version_never_replaced(
    registry: LoopbackRegistry, tmp_path: Path
) -> None:
    first = pushed(registry, docker_archive(tmp_path / "operator.tar"))
    blobs = {each for each in registry.pushed if each in registry.blobs}
    registry.pushed.clear()
    assert pushed(registry, docker_archive(tmp_path / "again.tar")) == first
    assert not blobs & set(registry.pushed)
    with pytest.raises(ClusterError, match=rf"operator:{__version__} is there with other content"):
        pushed(registry, docker_archive(tmp_path / "other.tar", more="file"))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("login", ["basic", "bearer"])
def test_a_registry_that_wants_a_password_gets_it(
    registry: LoopbackRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: str
) -> None:
    registry.login, registry.uses_of_tokens = login, 3  # tokens run out between requests
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(ClusterError, match=r"HTTP 401 .* set OCI_USERNAME and OCI_PASSWORD"):
        pushed(registry, docker_archive(tmp_path / "operator.tar"))
    monkeypatch.setenv("OCI_USERNAME", "me")
    monkeypatch.setenv("OCI_PASSWORD", "hidden-word")
    assert pushed(registry, docker_archive(tmp_path / "operator.tar"))
    assert registry.problems == []


@pytest.mark.usefixtures("quick")
def test_where_a_registry_lists_no_referrers_a_tag_does(registry: LoopbackRegistry, tmp_path: Path) -> None:
    registry.lists_referrers = False
    digest = pushed(registry, docker_archive(tmp_path / "operator.tar")).partition("@")[2]
    for _ in range(2):
        listed = manifest(registry, digest.replace(":", "-"))["manifests"]
        types = [each["artifactType"] for each in listed]
        assert types == ["application/vnd.cyclonedx+json", "application/vnd.in-toto+json"]
        pushed(registry, docker_archive(tmp_path / "operator.tar"))


@pytest.mark.parametrize("commit", ["unknown", f"{COMMIT}-dirty"])
def test_an_image_that_is_of_no_commit_is_not_pushed(registry: LoopbackRegistry, tmp_path: Path, commit: str) -> None:
    with pytest.raises(ClusterError, match="was built before what it is made of was committed"):
        pushed(registry, docker_archive(tmp_path / "operator.tar", commit))
    assert registry.pushed == []


def test_a_registry_that_does_not_answer_is_named(tmp_path: Path, quick: None) -> None:
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:9 cannot be reached .*: check REGISTRY"):
        publishing.push_image("127.0.0.1:9", "operator", docker_archive(tmp_path / "a.tar"), None, Progress())


@pytest.mark.slow
def test_a_bill_of_materials_has_what_is_in_the_image_and_is_valid(tmp_path: Path) -> None:
    try:
        bill.tool(Progress())
    except ClusterError as error:
        pytest.skip(f"cyclonedx-py cannot be installed here: {error}")
    archive = ImageArchive(docker_archive(tmp_path / "operator.tar"))
    text = bill.bill_of_materials(archive, "fairlead/operator", __version__, Progress())
    assert text == bill.bill_of_materials(archive, "fairlead/operator", __version__, Progress())
    document = json.loads(text)
    assert document["bomFormat"] == "CycloneDX" and document["metadata"]["component"]["name"] == "fairlead/operator"
    assert {each["purl"] for each in document["components"]} == {
        f"pkg:pypi/fairlead@{__version__}",
        "pkg:pypi/rich@15.0.0",
        "pkg:deb/debian/libc6@2%3A2.36-9%2Bdeb12u1?arch=amd64",
    }


def test_the_chart_installs_the_images_of_its_registry(
    registry: LoopbackRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helm_python = pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install -r requirements/helm.txt")
    monkeypatch.setattr(publishing, "revision", lambda repository: COMMIT)
    named = publishing.push_chart(f"{registry.host}/team", Progress())
    place, _, digest = named.partition("@")
    assert place == f"{registry.host}/team/charts/fairlead:{__version__}"
    helm_python.pull(
        f"oci://{registry.host}/team/charts/fairlead", version=__version__, destination=tmp_path, plain_http=True
    )
    with helm_python.Chart.load(tmp_path / f"fairlead-{__version__}.tgz") as chart:
        assert chart.values["image"]["repository"] == f"{registry.host}/team/fairlead/operator"
        assert chart.values["engineImage"]["repository"] == f"{registry.host}/team/fairlead/engine"
    (about,) = registry.referrers[digest]
    told = manifest(registry, about["digest"], "team/charts/fairlead")
    statement = json.loads(registry.blobs[told["layers"][0]["digest"]])
    assert statement["subject"][0]["digest"]["sha256"] == digest.removeprefix("sha256:")
    assert hashlib.sha256(registry.manifests["team/charts/fairlead"][digest][1]).hexdigest() in digest
    # The same commit gives the same chart.
    assert publishing.push_chart(f"{registry.host}/team", Progress()) == named


@pytest.mark.parametrize("registry", ["", "https://r.example", "r.example/Team", "r.example/a b", "r.example/"])
def test_what_is_no_place_is_refused(registry: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chart", registry]) == 1
    assert "write HOST or HOST/FOLDER" in capsys.readouterr().err


@pytest.mark.parametrize(("found", "told"), [("unknown", "clone the repository"), ("abc-dirty", "`git status` shows")])
def test_a_release_is_made_of_a_commit(
    found: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(publishing, "revision", lambda repository: found)
    for command in ("images", "chart"):
        assert main([command, "r.example/team"]) == 1
        assert told in capsys.readouterr().err


def test_a_tag_is_that_of_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"v{__version__}"]) == 0
    assert main(["check", "v99.0.0"]) == 1
    assert "count all of them up" in capsys.readouterr().err
