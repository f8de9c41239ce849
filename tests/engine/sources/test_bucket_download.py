"""`s3://`, `gs://` and `az://` against buckets on this machine, and against moto's S3 where that is installed."""

import builtins
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead_common.wire.downloads import DownloadFailure
from fairlead_engine.sources import buckets
from fairlead_engine.sources.remote import DownloadError
from fairlead_engine_testing.downloads import fetch, refusal
from fairlead_engine_testing.loopback_buckets import LoopbackBuckets, loopback_buckets

WEIGHTS = random.Random(13).randbytes(900_000)
MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b'{"model": 3}',
    "generation_config.json": b"{ }",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
}
SECRET = "hidden-word"
ENVIRONMENTS = {
    "s3": {"AWS_ACCESS_KEY_ID": SECRET, "AWS_SECRET_ACCESS_KEY": "another", "AWS_REGION": "us-east-1"},
    "gs": {"GOOGLE_BEARER_TOKEN": SECRET},
    "az": {
        "AZURE_STORAGE_ACCOUNT_NAME": "acme",
        "AZURE_STORAGE_SAS_TOKEN": f"sv=2022-11-02&sr=c&sp=rl&sig={SECRET}",
    },
}
ENDPOINTS = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_ENDPOINT"}


@pytest.fixture(scope="module")
def running() -> Iterator[LoopbackBuckets]:
    with loopback_buckets(LoopbackBuckets()) as server:
        yield server


@pytest.fixture
def server(running: LoopbackBuckets, monkeypatch: pytest.MonkeyPatch) -> LoopbackBuckets:
    running.behave()
    running.buckets = {"weights": {f"models/a/{path}": content for path, content in MODEL.items()}}
    running.buckets["weights"] |= {"models/a/": b"", "models/a/README.md": b"#", "models/ab/config.json": b"x"}
    running.secret, running.refusal, running.changes = SECRET, 403, {}
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    for scheme, variables in ENVIRONMENTS.items():
        for name, value in {**variables, ENDPOINTS[scheme]: running.endpoint}.items():
            monkeypatch.setenv(name, value)
    return running


@pytest.fixture(params=ENVIRONMENTS)
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def fails(source: str, models: Path) -> DownloadError:
    error = refusal(source, models)
    assert SECRET not in error.message and "sig=" not in error.message
    return error


def test_a_folder_of_a_bucket(server: LoopbackBuckets, tmp_path: Path, scheme: str) -> None:
    assert fetch(f"{scheme}://weights/models/a/", tmp_path) == MODEL
    assert {asked.path for asked in server.asked} == set(MODEL)


def test_it_goes_on_where_a_connection_broke(server: LoopbackBuckets, tmp_path: Path, scheme: str) -> None:
    server.cut_after, server.unwell = 300_000, 3
    assert fetch(f"{scheme}://weights/models/a", tmp_path) == MODEL
    assert server.file_bytes("model.safetensors") < len(WEIGHTS) * 1.5


def test_a_model_that_is_there_is_asked_for_again_only_with_refresh(
    server: LoopbackBuckets, tmp_path: Path, scheme: str
) -> None:
    source = f"{scheme}://weights/models/a"
    fetch(source, tmp_path)
    server.asked.clear()
    fetch(source, tmp_path, refresh=True)
    assert not server.asked  # the listing is the same
    server.buckets["weights"]["models/a/config.json"] = b'{"moved": true}'
    assert fetch(source, tmp_path, refresh=True)["config.json"] == b'{"moved": true}'


@pytest.mark.parametrize("key", ["models/a/../../evil", "models/a//config.json", "models/a/x\ny", "models/a/."])
def test_a_key_that_is_no_path_is_told_at_once(server: LoopbackBuckets, tmp_path: Path, scheme: str, key: str) -> None:
    """Nothing is wrong with the network."""
    server.buckets["weights"][key] = b"evil"
    error = fails(f"{scheme}://weights/models/a", tmp_path)
    assert error.reason == DownloadFailure.SOURCE_NOT_SUPPORTED and "has a key that is no path" in error.message
    assert not server.asked


def test_a_bucket_without_end_is_not_listed_to_its_end(
    server: LoopbackBuckets, tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_MOST_OBJECTS", len(MODEL) + 2)
    server.buckets["weights"] |= {f"models/a/logs/{index}": b"" for index in range(9)}
    error = fails(f"{scheme}://weights/models/a", tmp_path)
    assert error.reason == DownloadFailure.SOURCE_NOT_SUPPORTED
    assert "has more than 7 objects: name the folder that has config.json" in error.message


def test_a_file_that_changes_meanwhile_is_not_put_together_of_two(
    server: LoopbackBuckets, tmp_path: Path, scheme: str
) -> None:
    server.cut_after, server.changes = 300_000, {"models/a/model.safetensors": WEIGHTS[::-1]}
    error = fails(f"{scheme}://weights/models/a", tmp_path)
    assert error.reason == DownloadFailure.DIGEST_MISMATCH and "changed meanwhile" in error.message
    server.behave()
    assert fetch(f"{scheme}://weights/models/a", tmp_path) == MODEL | {"model.safetensors": WEIGHTS[::-1]}


@pytest.mark.parametrize("refusal", [401, 403])
def test_each_refusal_has_its_sentence(
    server: LoopbackBuckets, tmp_path: Path, scheme: str, refusal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, folder = (fails(f"{scheme}://{path}", tmp_path) for path in ("wights/models/a", "weights/models/b"))
    assert bucket.reason == folder.reason == DownloadFailure.SOURCE_NOT_FOUND
    assert "wights" in bucket.message and "nothing at" in folder.message
    server.secret, server.refusal = "another word", refusal
    denied = fails(f"{scheme}://weights/models/a", tmp_path)
    variable = {"s3": "AWS_ACCESS_KEY_ID", "gs": "GOOGLE_", "az": "AZURE_STORAGE_ACCOUNT_KEY"}[scheme]
    assert denied.reason == DownloadFailure.ACCESS_DENIED and variable in denied.message
    server.refusal = 400
    assert "HTTP 400" in fails(f"{scheme}://weights/models/a", tmp_path).message
    monkeypatch.setenv(ENDPOINTS[scheme], "http://127.0.0.1:9")
    gone = fails(f"{scheme}://weights/models/a", tmp_path)
    assert gone.reason == DownloadFailure.SOURCE_UNREACHABLE and "try 6" in gone.message


def test_variables_that_are_not_complete(
    server: LoopbackBuckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "GOOGLE_BEARER_TOKEN", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", f'{{"private_key": "{SECRET}"')
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", server.endpoint)
    for scheme, variable in (
        ("s3", "AWS_ACCESS_KEY_ID"),
        ("gs", "GOOGLE_SERVICE"),
        ("az", "AZURE_STORAGE_ACCOUNT_NAME"),
    ):
        error = fails(f"{scheme}://weights/models/a", tmp_path)
        assert error.reason == DownloadFailure.ACCESS_DENIED and variable in error.message, error.message


def test_without_its_library_it_says_what_to_install(
    server: LoopbackBuckets, tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("obstore"):
            raise ImportError(name)
        return genuine(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    error = fails(f"{scheme}://weights/models/a", tmp_path)
    assert error.reason == DownloadFailure.SOURCE_NOT_SUPPORTED
    assert "pip install 'fairlead-engine[buckets]'" in error.message


def test_what_another_takes_for_s3(server: LoopbackBuckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """moto checks no signatures, but has written its listings and ETags without us."""
    moto = pytest.importorskip("moto.server", reason="pip install 'moto[server]' boto3")
    boto3 = pytest.importorskip("boto3")
    other = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    other.start()
    try:
        address = "http://{}:{}".format(*other.get_host_and_port())
        client = boto3.client("s3", endpoint_url=address)
        client.create_bucket(Bucket="weights")
        for path, content in MODEL.items():
            client.put_object(Bucket="weights", Key=f"models/a/{path}", Body=content)
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        assert fetch("s3://weights/models/a", tmp_path) == MODEL
        assert fails("s3://weights/models/b", tmp_path).reason == DownloadFailure.SOURCE_NOT_FOUND
        assert fails("s3://wights/models/a", tmp_path).reason == DownloadFailure.SOURCE_NOT_FOUND
    finally:
        other.stop()
