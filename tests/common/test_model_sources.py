"""How sources are read: the parts of each scheme, what is refused and by which sentence, and the names of folders."""

import hashlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_common.wire.model_sources import (
    DOWNLOADED,
    FORMS,
    IN_PLACE,
    Source,
    SourceError,
    folder_name,
    parse_source,
)

DIGEST = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://acme/dinghy-1b", Source("hf", "acme", "dinghy-1b")),
        ("hf://acme/dinghy@v1.0", Source("hf", "acme", "dinghy", "v1.0")),
        ("hf://acme/dinghy@refs/pr/3", Source("hf", "acme", "dinghy", "refs/pr/3")),
        ("hf://acme/dinghy-GGUF:Q4_K_M", Source("hf", "acme", "dinghy-GGUF", None, "Q4_K_M")),
        ("hf://acme/dinghy-GGUF:UD-IQ1_S@v1", Source("hf", "acme", "dinghy-GGUF", "v1", "UD-IQ1_S")),
        ("hf://gpt2", Source("hf", "", "gpt2")),
        ("s3://weights/llama/8b/", Source("s3", "weights", "llama/8b")),
        ("gs://weights/llama", Source("gs", "weights", "llama")),
        ("az://container/llama", Source("az", "container", "llama")),
        ("https://files.example.com:8443/a/b.tar.gz", Source("https", "files.example.com:8443", "a/b.tar.gz")),
        ("https://[::1]:8443/models/a", Source("https", "[::1]:8443", "models/a")),
        ("https://hf.co/a/b/resolve/main/c.gguf", Source("https", "hf.co", "a/b/resolve/main/c.gguf")),
        ("oci://ghcr.io/acme/dinghy:1.0", Source("oci", "ghcr.io", "acme/dinghy", "1.0")),
        (f"oci://localhost:5000/a@{DIGEST}", Source("oci", "localhost:5000", "a", DIGEST)),
        (f"oci://ghcr.io/acme/dinghy:1.0@{DIGEST}", Source("oci", "ghcr.io", "acme/dinghy", DIGEST)),
        ("oci://ghcr.io/acme/dinghy", Source("oci", "ghcr.io", "acme/dinghy")),
        ("oci://ghcr.io/ac__me/din--ghy.b_c/", Source("oci", "ghcr.io", "ac__me/din--ghy.b_c")),
        ("demo://dinghy", Source("demo", "dinghy", "")),
        ("file:///srv/models/a", Source("file", "", "/srv/models/a")),
        ("pvc://claim/a/b", Source("pvc", "claim", "a/b")),
        ("pvc://claim", Source("pvc", "claim", "")),
    ],
)
def test_parts(text: str, expected: Source) -> None:
    source = parse_source(text)
    assert source == expected
    assert source.is_downloaded == (source.scheme in DOWNLOADED)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("acme/dinghy", "is written hf://acme/dinghy"),
        ("acme/dinghy@v1", "is written hf://acme/dinghy@v1"),
        ("acme", "write one of hf://"),
        ("a/b/c", "write one of hf://"),
        ("https://huggingface.co/acme/dinghy-1b", "write hf://acme/dinghy-1b"),
        ("https://www.huggingface.co/acme/dinghy/tree/main/", "write hf://acme/dinghy"),
        ("https://hf.co/acme/dinghy/blob/main/config.json", "write hf://acme/dinghy"),
        ("https://hf.co/acme/dinghy/blob/main/Q8_0/dinghy-Q8_0.gguf", "write hf://acme/dinghy:dinghy-Q8_0"),
        ("https://huggingface.co/acme/dinghy?library=transformers", "write hf://acme/dinghy"),
        ("https://huggingface.co/acme/dinghy/tree/main#files", "write hf://acme/dinghy"),
        ("http://huggingface.co/acme/dinghy/", "write hf://acme/dinghy"),
        ("huggingface.co/acme/dinghy", "write hf://acme/dinghy"),
        ("hf.co/acme/dinghy-GGUF:Q4_K_M", "write hf://acme/dinghy-GGUF:Q4_K_M"),
        ("HF.co/acme/dinghy", "write hf://acme/dinghy"),
        ("hf:acme/dinghy", "hf:// is written hf://ORGANISATION/NAME"),
        ("HF://acme/dinghy", "hf:// is written hf://ORGANISATION/NAME"),
        ("s3:/bucket/a", "s3:// is written s3://BUCKET/FOLDER"),
        ("/srv/dinghy", "file:///FOLDER"),
        ("./dinghy", "file:///FOLDER"),
        ("../a/dinghy", "file:///FOLDER"),
        ("~/dinghy", "file:///FOLDER"),
        ("a-dinghy-of-thirty-characters-1", "'a-dinghy-of-thirty-characters-1' starts no source"),
        ("dinghy:4b", "write one of hf://"),
        ("http://host/a", "write one of hf://"),
        ("ftp://host/a", "write one of hf://"),
        ("hf://", "hf://ORGANISATION/NAME"),
        ("hf://a/b/c", "hf://ORGANISATION/NAME"),
        ("hf://a/b:", "hf://ORGANISATION/NAME[:QUANTISATION]"),
        ("hf://a/b@", "hf://ORGANISATION/NAME"),
        ("hf://a/..", "'..'"),
        ("hf://a/b c", "without spaces"),
        ("s3://bucket", "s3://BUCKET/FOLDER"),
        ("s3://bucket/a/../b", "'..'"),
        ("https://host", "https://HOST/FOLDER"),
        ("oci://ghcr.io", "oci://REGISTRY/REPOSITORY"),
        ("oci://ghcr.io/a@sha256:12", "oci://REGISTRY/REPOSITORY"),
        ("oci://ghcr.io/a//b", "oci://REGISTRY/REPOSITORY"),
        ("oci://ghcr.io/a..b", "oci://REGISTRY/REPOSITORY"),
        ("oci://ghcr.io/a_-b", "oci://REGISTRY/REPOSITORY"),
        ("file://relative", "file:///FOLDER"),
        ("demo://a/b", "demo://NAME"),
        ("s3://" + "a" * 2000 + "/b", "1024 characters"),
    ],
)
def test_what_is_no_source_is_refused_with_how_one_is_written(text: str, sentence: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_source(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "https://me:hunter2@host/a",
        "s3://key:hunter2@bucket/a",
        "https://host/a?sig=hunter2",
        "hf://hunter2@org/name",
        "https://me:hunter2@huggingface.co/acme/dinghy",
        "https://huggingface.co/acme/dinghy?token=hunter2",
        "HTTPS://me:hunter2@host/a",
        "http://me:hunter2@host/a",
    ],
)
def test_credentials_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_source(text)
    assert "hunter2" not in str(caught.value)


def test_every_scheme_has_a_form() -> None:
    assert set(FORMS) == {*DOWNLOADED, *IN_PLACE}


def test_the_folder_of_a_source() -> None:
    source = "hf://acme/dinghy@v1"
    assert folder_name(source) == "hf-acme-dinghy-v1-" + hashlib.sha256(source.encode()).hexdigest()[:12]


@given(st.text(min_size=1), st.text(min_size=1))
def test_folders_are_one_plain_name_each(one: str, other: str) -> None:
    allowed = set(string.ascii_letters + string.digits + "._-")
    name = folder_name(one)
    assert set(name) <= allowed and name[0] not in ".-" and len(name) <= 80
    assert (name == folder_name(other)) == (one == other)
