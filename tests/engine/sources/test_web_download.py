"""`https://` against a web server with TLS on this machine: folders, single files, archives, and what is refused."""

import gzip
import hashlib
import io
import json
import random
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from backports import zstd

from fairlead_common.wire.downloads import DownloadFailure
from fairlead_engine.sources import archive
from fairlead_engine.sources.models_folder import ModelsFolder
from fairlead_engine.sources.remote import DownloadError, Packing, RemoteFile
from fairlead_engine_testing import downloads
from fairlead_engine_testing.certificates import Certificate, make_certificate
from fairlead_engine_testing.file_server import Listening
from fairlead_engine_testing.loopback_web import LoopbackWeb, loopback_web

WEIGHTS = random.Random(5).randbytes(600_000)
ZSTD = [("m.tar.zst", "zst"), ("m.tzst", "zst")]
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}).encode()
FOLDER = {
    "config.json": b"{}",
    "tokenizer.json": b'{"model": 1}',
    "model.safetensors.index.json": INDEX,
    SHARDS[0]: WEIGHTS,
    SHARDS[1]: WEIGHTS[::-1],
}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"), "127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def running(certificate: Certificate) -> Iterator[LoopbackWeb]:
    with loopback_web(LoopbackWeb(), Listening(certificate=certificate)) as server:
        yield server


@pytest.fixture
def server(running: LoopbackWeb, certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> LoopbackWeb:
    running.files = {f"models/a/{path}": content for path, content in FOLDER.items()}
    running.redirects, running.authorization, running.has_ranges, running.cut_after = {}, None, True, None
    running.asked, running.authorized, running.changes, running.missing_status = [], [], {}, 404
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
    monkeypatch.delenv("HTTPS_AUTHORIZATION", raising=False)
    return running


def fetch(server: LoopbackWeb, models: Path, path: str) -> dict[str, bytes]:
    return downloads.fetch(f"https://{server.host}/{path}", models)


def fails(server: LoopbackWeb, models: Path, path: str) -> DownloadError:
    return downloads.refusal(f"https://{server.host}/{path}", models)


def tar(members: dict[str, bytes], compression: str = "") -> bytes:
    return zstd.compress(downloads.tar(members)) if compression == "zst" else downloads.tar(members, compression)


def test_a_folder_is_asked_for_its_files_by_name(server: LoopbackWeb, tmp_path: Path) -> None:
    assert fetch(server, tmp_path, "models/a") == FOLDER


def test_a_bucket_that_may_not_be_listed_says_403_of_what_is_not_there(server: LoopbackWeb, tmp_path: Path) -> None:
    server.missing_status = 403
    assert fetch(server, tmp_path, "models/a") == FOLDER
    assert fails(server, tmp_path, "models/b").reason == DownloadFailure.ACCESS_DENIED


def test_a_folder_with_one_file_of_weights(server: LoopbackWeb, tmp_path: Path) -> None:
    server.files = {"b/config.json": b"{}", "b/model.safetensors": WEIGHTS, "b/weights.safetensors": WEIGHTS[:1000]}
    assert fetch(server, tmp_path, "b/") == {"config.json": b"{}", "model.safetensors": WEIGHTS}
    named = fetch(server, tmp_path, "b/weights.safetensors")
    assert named == {"config.json": b"{}", "model.safetensors": WEIGHTS[:1000]}


@pytest.mark.parametrize("has_ranges", [True, False])
def test_it_goes_on_where_a_connection_broke(server: LoopbackWeb, tmp_path: Path, has_ranges: bool) -> None:
    server.has_ranges, server.cut_after = has_ranges, 250_000 if has_ranges else None
    if not has_ranges:  # all of it comes again, and what is there is passed over
        staging = ModelsFolder(tmp_path).staging(f"https://{server.host}/models/a")
        server.cut_after = 250_000
        assert fails(server, tmp_path, "models/a").reason == DownloadFailure.SOURCE_UNREACHABLE
        assert (staging / f"{SHARDS[0]}.part").stat().st_size > 0
        server.cut_after = None
    assert fetch(server, tmp_path, "models/a") == FOLDER
    assert not has_ranges or {start for _, path, start in server.asked if path.endswith(SHARDS[0])} > {0}


def test_a_file_that_changes_meanwhile_is_not_put_together_of_two(server: LoopbackWeb, tmp_path: Path) -> None:
    server.cut_after, server.changes = 250_000, {f"models/a/{SHARDS[0]}": WEIGHTS[1:] + b"!"}
    error = fails(server, tmp_path, "models/a")
    assert error.reason == DownloadFailure.DIGEST_MISMATCH and "changed meanwhile" in error.message
    server.cut_after = None
    assert fetch(server, tmp_path, "models/a") == FOLDER | {SHARDS[0]: WEIGHTS[1:] + b"!"}


@pytest.mark.parametrize(("name", "compression"), [("m.tar", ""), ("m.tar.gz", "gz"), ("m.tgz", "gz"), *ZSTD])
def test_an_archive_is_unpacked(server: LoopbackWeb, tmp_path: Path, name: str, compression: str) -> None:
    packed = tar({f"./model/{path}": each for path, each in FOLDER.items()} | {"README.md": b"#"}, compression)
    server.files = {name: packed, f"{name}.sha256": f"{hashlib.sha256(packed).hexdigest()}  {name}\n".encode()}
    assert fetch(server, tmp_path, name) == FOLDER


def link(target: str, kind: bytes = tarfile.SYMTYPE) -> bytes:
    content = io.BytesIO(tar(FOLDER))
    with tarfile.open(fileobj=content, mode="a:") as archive:
        info = tarfile.TarInfo("model.safetensors")
        info.type, info.linkname = kind, target
        archive.addfile(info)
    return content.getvalue()


def header(kind: bytes, size: int, body: bytes = b"") -> bytes:
    """One of a tar's blocks, with what follows it."""
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.USTAR_FORMAT) + body + bytes(-len(body) % tarfile.BLOCKSIZE)


def holes() -> bytes:
    """A tar with a sparse file by the newest of GNU's forms, whose map of holes has no end."""
    names = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a", "GNU.sparse.realsize": "9"}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as packed:
        info = tarfile.TarInfo("model.safetensors")
        info.pax_headers, info.size = names, 8 << 20
        packed.addfile(info, io.BytesIO(bytes(8 << 20)))
    return content.getvalue()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: gzip.compress(header(tarfile.XHDTYPE, 32 << 20, bytes(32 << 20)) + tar(FOLDER)),
            "is no tar that can be read",
        ),
        (
            lambda: gzip.compress(header(tarfile.GNUTYPE_LONGNAME, 32 << 20, bytes(32 << 20)) + tar(FOLDER)),
            "is no tar that",
        ),
        (lambda: gzip.compress(header(tarfile.XHDTYPE, 13, b"13 path=abcd\n") * 5000 + tar(FOLDER)), "is no tar that"),
        (lambda: gzip.compress(holes()), "is no tar that can be read"),
        (lambda: tar(FOLDER | {"../../evil.json": b"{}"}), "no path below a folder"),
        (lambda: tar(FOLDER | {"/etc/evil.json": b"{}"}), "no path below a folder"),
        (lambda: link("/etc/passwd"), "a link or a device"),
        (lambda: link("config.json", tarfile.LNKTYPE), "a link or a device"),
        (lambda: tar({"config.json": b"{}", "model.safetensors": bytes(80 << 20)}, "gz"), "unpacks to more than"),
        (lambda: tar({"config.json": b"{}", "model.safetensors": bytes(80 << 20)}, "zst"), "unpacks to more than"),
        (lambda: b"no tar" * 1000, "is no tar that can be read"),
        (
            lambda: zstd.compress(header(tarfile.XHDTYPE, 32 << 20, bytes(32 << 20)) + tar(FOLDER)),
            "is no tar that can be read",
        ),
        (lambda: tar(FOLDER, "zst")[:-20_000], "is no tar that can be read"),
        (lambda: tar(FOLDER, "zst")[:4] + b"\xff" * 1000, "is no tar that can be read"),
        (lambda: zstd.compress(b"no tar" * 1000), "is no tar that can be read"),
        (lambda: tar({"config.json": b"{}"}), "holds no weights"),
    ],
    ids=[
        "long header",
        "long name",
        "headers of headers",
        "holes",
        "up",
        "absolute",
        "symbolic link",
        "hard link",
        "bomb",
        "bomb of zstd",
        "damaged",
        "long header of zstd",
        "zstd cut short",
        "zstd damaged",
        "zstd of something else",
        "nothing",
    ],
)
def test_archives_that_are_not_trusted(
    server: LoopbackWeb, tmp_path: Path, make: Callable[[], bytes], words: str
) -> None:
    server.files = {"m.tar.gz": make()}
    assert words in fails(server, tmp_path / "models", "m.tar.gz").message
    assert not [path for path in tmp_path.rglob("*") if path.name == "evil.json"]


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_headers_of_archives_are_not_read_into_memory(tmp_path: Path, kind: bytes) -> None:
    (tmp_path / "m").write_bytes(gzip.compress(header(kind, 32 << 20, bytes(32 << 20)) + tar({"config.json": b"{}"})))
    tracemalloc.start()
    try:
        with pytest.raises(DownloadError):
            archive.opened((RemoteFile("m", packing=Packing.ARCHIVE),), tmp_path, "https://host/m")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_each_refusal_has_its_sentence(server: LoopbackWeb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = fails(server, tmp_path, "models/b")
    assert missing.reason == DownloadFailure.SOURCE_NOT_FOUND and "models/b/config.json" in missing.message
    server.authorization = "Bearer hidden-word"
    denied = fails(server, tmp_path, "models/a")
    assert denied.reason == DownloadFailure.ACCESS_DENIED and "HTTPS_AUTHORIZATION" in denied.message
    monkeypatch.setenv("HTTPS_AUTHORIZATION", "Bearer hidden-word")
    assert fetch(server, tmp_path, "models/a") == FOLDER
    monkeypatch.delenv("SSL_CERT_FILE")
    untrusted = fails(server, tmp_path, "models/c")
    assert untrusted.reason == DownloadFailure.SOURCE_UNREACHABLE and "SSL_CERT_FILE" in untrusted.message


def test_credentials_stay_with_the_host_that_they_are_for(
    server: LoopbackWeb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_AUTHORIZATION", "Bearer hidden-word")
    elsewhere = server.host.replace("127.0.0.1", "localhost")
    server.redirects = {f"models/a/{SHARDS[0]}": f"https://{elsewhere}/elsewhere"}
    server.files["elsewhere"] = WEIGHTS
    assert fetch(server, tmp_path, "models/a") == FOLDER
    assert "models/a/config.json" in server.authorized and "elsewhere" not in server.authorized
    server.redirects = {f"models/a/{SHARDS[0]}": "http://127.0.0.1:1/elsewhere"}
    assert "without TLS" in fails(server, tmp_path / "other", "models/a").message
