"""Clients of the tests' own process read the certificates they trust once, wherever these are."""

import shutil
import ssl
from pathlib import Path

import certifi
import httpx
import pytest


@pytest.mark.parametrize("named", ["", "SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_clients_share_what_they_trust_by_default(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    file = shutil.copy(certifi.where(), tmp_path / "trusted.pem")
    if named:
        monkeypatch.setenv(named, str(tmp_path if named.endswith("DIR") else file))
    assert httpx.create_ssl_context() is httpx.create_ssl_context()


def test_a_context_of_ones_own_is_ones_own(tmp_path: Path) -> None:
    file = shutil.copy(certifi.where(), tmp_path / "trusted.pem")
    assert ssl.create_default_context(cafile=file) is not ssl.create_default_context(cafile=file)
    assert ssl.create_default_context() is not ssl.create_default_context()
