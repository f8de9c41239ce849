"""`oci://` against a registry on this machine: artifacts and images, challenges, digests, and what is refused."""

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from backports import zstd

from fairlead_common.wire.downloads import DownloadFailure
from fairlead_engine.sources.models_folder import ModelsFolder, read_manifest
from fairlead_engine.sources.oci_registry import may_be_plain
from fairlead_engine.sources.remote import DownloadError
from fairlead_engine_testing.downloads import fetch, refusal, tar
from fairlead_engine_testing.loopback_registry import (
    DOCKER_MANIFEST,
    INDEX,
    MANIFEST,
    ORAS_FILE,
    TITLE,
    Layer,
    LoopbackRegistry,
    loopback_registry,
)

WEIGHTS = random.Random(9).randbytes(700_000)
MODEL = {"config.json": b"{}", "tokenizer.json": b'{"model": 2}', "model.safetensors": WEIGHTS}
OCI_GZIP, DOCKER_GZIP = (
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
)
MODELPACK = "application/vnd.cncf.model"


@pytest.fixture(scope="module")
def running() -> Iterator[LoopbackRegistry]:
    with loopback_registry(LoopbackRegistry()) as registry:
        yield registry


@pytest.fixture
def registry(running: LoopbackRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LoopbackRegistry:
    running.behave()
    running.manifests, running.blobs, running.tokens = {}, {}, {}
    running.login, running.uses_of_tokens, running.realm, running.token_pieces = "", 1000, None, 1
    running.push("acme/dinghy", "v1", files(MODEL | {"README.md": b"#"}))
    for variable in ("OCI_USERNAME", "OCI_PASSWORD", "OCI_INSECURE_REGISTRIES", ".dockerconfigjson"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    return running


def files(model: dict[str, bytes], media_type: str = ORAS_FILE) -> list[Layer]:
    return [Layer(content, media_type, {TITLE: path}) for path, content in model.items()]


def pull(registry: LoopbackRegistry, models: Path, name: str = "acme/dinghy:v1") -> dict[str, bytes]:
    return fetch(f"oci://{registry.host}/{name}", models)


def fails(registry: LoopbackRegistry, models: Path, name: str = "acme/dinghy:v1") -> DownloadError:
    return refusal(f"oci://{registry.host}/{name}", models)


def test_files_that_oras_pushed(registry: LoopbackRegistry, tmp_path: Path) -> None:
    assert pull(registry, tmp_path) == MODEL
    assert {each.path for each in registry.asked} == set(MODEL)  # what serving needs


@pytest.mark.parametrize("reference", [":v1@{digest}", "@{digest}"])
def test_a_digest_names_what_no_tag_can_move(registry: LoopbackRegistry, tmp_path: Path, reference: str) -> None:
    digest = registry.push("acme/dinghy", "v1", files(MODEL))
    registry.push("acme/dinghy", "v1", files(MODEL | {"config.json": b'{"moved": true}'}))
    name = f"acme/dinghy{reference.format(digest=digest)}"
    assert pull(registry, tmp_path, name) == MODEL
    manifest = read_manifest(ModelsFolder(tmp_path).model(f"oci://{registry.host}/{name}"))
    assert manifest is not None and manifest.revision == digest


def test_without_a_tag_it_is_the_latest(registry: LoopbackRegistry, tmp_path: Path) -> None:
    registry.push("acme/deep/er", "latest", files({f"model/{path}": each for path, each in MODEL.items()}))
    assert pull(registry, tmp_path, "acme/deep/er") == MODEL  # of a folder that was pushed by its path


SETTINGS = {path: each for path, each in MODEL.items() if path != "model.safetensors"}
FILEPATH = "org.cncf.model.filepath"
"""ModelPack's word for a title."""


def below(folder: str, model: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{folder}/{path}": content for path, content in model.items()}


def image_layer(members: dict[str, bytes], links: tuple[str, ...] = ()) -> Layer:
    return Layer(tar(members, "gz", links), OCI_GZIP)


ARTIFACTS = {
    "oras folder": [Layer(tar(below("a", MODEL), "gz"), OCI_GZIP, {TITLE: "a", "io.deis.oras.content.unpack": "true"})],
    "image compressed with zstd": [
        Layer(zstd.compress(tar(below("models/a", MODEL))), "application/vnd.oci.image.layer.v1.tar+zstd")
    ],
    "image compressed in parts": [  # as pzstd does, each part behind a frame that tells its size
        Layer(
            b"\x50\x2a\x4d\x18\x04\0\0\0size" + zstd.compress(tar(below("models/a", MODEL))),
            "application/vnd.oci.image.layer.v1.tar+zstd",
        )
    ],
    "modelpack compressed with zstd": [
        Layer(zstd.compress(tar(MODEL)), "application/vnd.cncf.model.weight.v1.tar+zstd", {FILEPATH: "model"})
    ],
    "oras tar compressed with zstd": [Layer(zstd.compress(tar(below("a", MODEL))), ORAS_FILE, {TITLE: "a.tar.zst"})],
    "oras tar": [Layer(tar(below("a", MODEL), "gz"), ORAS_FILE, {TITLE: "a.tar.gz"})],
    "modelpack tars": [
        Layer(tar({"model.safetensors": WEIGHTS}), f"{MODELPACK}.weight.v1.tar", {FILEPATH: "model.safetensors"}),
        Layer(tar(SETTINGS, "gz"), f"{MODELPACK}.weight.config.v1.tar+gzip"),
        Layer(b"no tar", f"{MODELPACK}.code.v1.tar"),
    ],
    "modelpack files": [
        Layer(content, f"{MODELPACK}.weight.v1.raw", {FILEPATH: path}) for path, content in MODEL.items()
    ],
    "files beside a tar": [
        *files(SETTINGS),
        Layer(tar({"model.safetensors": WEIGHTS}), "application/vnd.a.model.v1.tar"),
    ],
    "image": [
        image_layer({"usr/bin/busybox": b"ELF"}, links=("bin", "lib64")),
        image_layer(below("models", SETTINGS | {"model.safetensors": b"old"})),
        image_layer(below("models", {"model.safetensors": WEIGHTS, "consolidated.safetensors": b"a"})),
        image_layer(below("models", {".wh.consolidated.safetensors": b""})),
    ],
    "image that begins anew": [
        image_layer(below("models", {"model-00001-of-00001.safetensors": b"a", "vocab.json": b"a"})),
        image_layer(below("models", {".wh..wh..opq": b""} | MODEL)),
    ],
}


@pytest.mark.parametrize("kind", ARTIFACTS)
def test_what_is_packed_is_unpacked(registry: LoopbackRegistry, tmp_path: Path, kind: str) -> None:
    registry.push("acme/packed", "v1", ARTIFACTS[kind])
    registry.cut_after = 200_000  # and goes on where it was
    assert pull(registry, tmp_path, "acme/packed:v1") == MODEL


def test_an_image_for_docker_and_an_index(registry: LoopbackRegistry, tmp_path: Path) -> None:
    layer = Layer(tar({f"models/{path}": each for path, each in MODEL.items()}, "gz"), DOCKER_GZIP)
    digest = registry.push("acme/image", "docker", [layer], DOCKER_MANIFEST)
    assert pull(registry, tmp_path, "acme/image:docker") == MODEL
    other = registry.push("acme/image", "other", files({"config.json": b"{}"}))

    def entry(digest: str, system: str, architecture: str) -> dict[str, object]:
        platform = {"os": system, "architecture": architecture}
        return {"mediaType": MANIFEST, "digest": digest, "size": 100, "platform": platform}

    told = [entry(other, "unknown", "unknown"), entry(digest, "linux", "riscv64")]
    registry.push_manifest("acme/image", "v2", INDEX, {"schemaVersion": 2, "manifests": told})
    assert pull(registry, tmp_path, "acme/image:v2") == MODEL


def test_a_model_of_one_gguf_file_needs_no_name(registry: LoopbackRegistry, tmp_path: Path) -> None:
    registry.push("ai/small", "v1", [Layer(b"GGUF" + WEIGHTS, "application/vnd.docker.ai.gguf.v3")])
    assert pull(registry, tmp_path, "ai/small:v1") == {"model.gguf": b"GGUF" + WEIGHTS}


@pytest.mark.matrix
@pytest.mark.parametrize("login", ["basic", "bearer"])
@pytest.mark.parametrize("how", ["pair", "secret", "auth", "folder"])
def test_credentials_answer_a_challenge_and_go_nowhere_else(
    registry: LoopbackRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: str, how: str
) -> None:
    registry.login, registry.uses_of_tokens = login, 2  # each token runs out on the way
    denied = fails(registry, tmp_path)
    assert denied.reason == DownloadFailure.ACCESS_DENIED and "give OCI_USERNAME" in denied.message
    name, _, password = registry.pair.partition(":")
    entry = {"username": name, "password": password}
    if how == "auth":
        entry = {"auth": base64.b64encode(registry.pair.encode()).decode()}
    auths = {"elsewhere": {"auth": "eDp5"}, f"https://{registry.host}/v2/": entry, "127.0.0.1": {"auth": "eDp5"}}
    config = json.dumps({"auths": auths, "credsStore": "desktop"})
    if how == "pair":
        monkeypatch.setenv("OCI_USERNAME", name)
        monkeypatch.setenv("OCI_PASSWORD", password)
    elif how == "folder":
        (tmp_path / "docker").mkdir()
        (tmp_path / "docker" / "config.json").write_text(config)
    else:
        monkeypatch.setenv(".dockerconfigjson", config)
    assert pull(registry, tmp_path) == MODEL and not registry.problems
    registry.pair = "me:another"
    refused = fails(registry, tmp_path / "other")
    registry.pair = f"{name}:{password}"
    assert refused.reason == DownloadFailure.ACCESS_DENIED and "does not let these credentials" in refused.message
    assert password not in refused.message


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"OCI_USERNAME": "me"}, "OCI_PASSWORD is not set"),
        ({".dockerconfigjson": "[]"}, ".dockerconfigjson is no configuration"),
        (
            {".dockerconfigjson": '{"auths": {"HOST": {"auth": "hidden word"}}}'},
            ".dockerconfigjson is no configuration",
        ),
    ],
)
def test_credentials_that_cannot_be_read(
    registry: LoopbackRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], words: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("HOST", registry.host))
    error = fails(registry, tmp_path)
    assert error.reason == DownloadFailure.ACCESS_DENIED and words in error.message and "hidden" not in error.message


@pytest.mark.parametrize(
    ("name", "reason", "words"),
    [
        ("acme/dingy:v1", DownloadFailure.SOURCE_NOT_FOUND, "has no"),
        ("acme/dinghy:v9", DownloadFailure.REVISION_NOT_FOUND, "'v9'"),
        (f"acme/dinghy@sha256:{'0' * 64}", DownloadFailure.REVISION_NOT_FOUND, "0000"),
    ],
)
def test_each_refusal_has_its_sentence(
    registry: LoopbackRegistry, tmp_path: Path, name: str, reason: DownloadFailure, words: str
) -> None:
    error = fails(registry, tmp_path, name)
    assert error.reason == reason and words in error.message


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([Layer(b"a", "application/vnd.cncf.model.weight.v1.tar+xz")], "cannot be unpacked"),
        ([Layer(tar(MODEL, "gz", ("config.json",)), "application/vnd.a.model.v1.tar+gzip")], "a link or a device"),
        ([Layer(tar(MODEL | {"../../evil.json": b"{}"}, "gz"), OCI_GZIP)], "no path below a folder"),
        (files(MODEL | {"../evil.json": b"{}"}), "no path below a folder"),
        ([Layer(tar(MODEL, "gz"), OCI_GZIP), *files({"../../../evil.json": b"{}"})], "no path below a folder"),
        ([Layer(tar(MODEL, "gz"), OCI_GZIP), *files({"TMP/evil.json": b"{}"})], "no path below a folder"),
        ([Layer(b"a", "text/plain")], "holds no weights"),
    ],
    ids=["xz", "link", "up", "title", "title beside a tar", "absolute title beside a tar", "nothing"],
)
def test_artifacts_that_are_not_trusted(
    registry: LoopbackRegistry, tmp_path: Path, layers: list[Layer], words: str
) -> None:
    for layer in layers:
        if "TMP" in layer.annotations.get(TITLE, ""):
            layer.annotations[TITLE] = layer.annotations[TITLE].replace("TMP", str(tmp_path))
    registry.push("acme/odd", "v1", layers)
    assert words in fails(registry, tmp_path / "models", "acme/odd:v1").message
    assert not [path for path in tmp_path.rglob("*") if path.name == "evil.json"]


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"layers": [' + b'{"a":' * 100_000, b'{"layers": 5}', b"{"])
def test_a_manifest_that_is_none_is_told(registry: LoopbackRegistry, tmp_path: Path, content: bytes) -> None:
    registry.manifests["acme/odd"] = {"v1": (MANIFEST, content)}
    error = fails(registry, tmp_path, "acme/odd:v1")
    assert error.reason == DownloadFailure.SOURCE_UNREACHABLE and "something else than a manifest" in error.message


@pytest.mark.parametrize("realm", ["http://[::1", "", "https://", "file:///etc", "http://elsewhere.example/token"])
def test_a_challenge_that_leads_nowhere_gets_no_password(
    registry: LoopbackRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, realm: str
) -> None:
    registry.login, registry.realm = "bearer", realm
    error = fails(registry, tmp_path)
    assert error.reason == DownloadFailure.ACCESS_DENIED and "to an address" in error.message


def test_a_token_that_comes_in_pieces_is_taken_whole(
    registry: LoopbackRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCI_USERNAME", "me")
    monkeypatch.setenv("OCI_PASSWORD", "hidden-word")
    registry.login, registry.token_pieces = "bearer", 3
    assert pull(registry, tmp_path) == MODEL


@pytest.mark.parametrize("name", ["manifest", "model.safetensors"])
def test_a_flipped_byte_is_refused_by_name(registry: LoopbackRegistry, tmp_path: Path, name: str) -> None:
    registry.flipped.add(name)
    error = fails(registry, tmp_path)
    assert error.reason == DownloadFailure.DIGEST_MISMATCH and name in error.message
    registry.behave()
    assert pull(registry, tmp_path) == MODEL


def test_who_may_be_spoken_to_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ("localhost", "localhost:5000", "127.0.0.1:5000", "127.9.9.9", "[::1]:5000", "[::1]")
    assert all(map(may_be_plain, plain))
    assert not any(map(may_be_plain, ("ghcr.io", "10.0.0.1:5000", "localhost.evil.io", "127.0.0.1.evil.io", "[::2]")))
    monkeypatch.setenv("OCI_INSECURE_REGISTRIES", "registry.svc:5000, 10.0.0.1")
    assert may_be_plain("registry.svc:5000") and may_be_plain("10.0.0.1") and not may_be_plain("registry.svc")
