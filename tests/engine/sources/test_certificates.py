"""`ca.crt` as files with certificates are: several, with words beside them, from any editor."""

import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead_engine.sources.certificates import FILE, KEY, trusted
from fairlead_engine.sources.remote import DownloadError
from fairlead_engine_testing.certificates import make_certificate

SUBJECT = "authority of tests"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_certificate(tmp_path_factory.mktemp("certificate"), "127.0.0.1").authority.read_text()


def names_trusted() -> list[str]:
    """Of every authority."""
    certificates = ssl.create_default_context().get_ca_certs()
    return [dict(each[0] for each in one["subject"]).get("commonName", "") for one in certificates]  # type: ignore[misc]


@pytest.mark.parametrize(
    "written",
    [
        str,
        lambda pem: pem + pem,
        lambda pem: pem.replace("\n", "\r\n"),
        lambda pem: pem.strip(),
        lambda pem: f"# Főtanúsítvány, Müller\n{pem}and more\n",
        lambda pem: f"# \udcfcber\n{pem}",  # in an encoding that is not the system's
    ],
)
def test_it_is_trusted_beside_the_system_s(
    written: Callable[[str], str], pem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FILE, raising=False)
    before = names_trusted()
    monkeypatch.setenv(KEY, written(pem))
    with trusted():
        file = Path(os.environ[FILE])
        assert sorted(names_trusted()) == sorted([*before, SUBJECT])
    assert FILE not in os.environ and not file.exists()


def test_a_file_that_is_named_counts_whatever_its_encoding(
    pem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = make_certificate(tmp_path, "127.0.0.1").authority
    another.write_bytes(b"# M\xfcller\n" + another.read_bytes())
    monkeypatch.setenv(FILE, str(another))
    monkeypatch.setenv(KEY, pem)
    with trusted():
        assert names_trusted() == [SUBJECT, SUBJECT]
    assert os.environ[FILE] == str(another)


@pytest.mark.parametrize("own", ["", "no certificate", "# Müller", "{pem}-----BEGIN CERTIFICATE-----\nMüll\n"])
def test_what_is_no_certificate_is_refused(own: str, pem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, own.format(pem=pem))
    with pytest.raises(DownloadError, match=r"ca\.crt holds no certificate in PEM"), trusted():
        pass
