"""The files that the test node makes: certificates, kubeconfig, image archive, component settings."""

import shutil
import ssl
from pathlib import Path

import pytest
import yaml
from cluster import pki
from cluster.api import Api

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


@needs_openssl
def test_a_kubeconfig_is_complete_in_itself_and_its_owners_alone(tmp_path: Path) -> None:
    authority = pki.Authority(tmp_path / "pki")
    authority.create()
    pair = authority.client("admin", "admin", "system:masters")
    target = tmp_path / "kubeconfig"
    pki.write_kubeconfig(target, "https://10.245.255.2:6443", authority, "admin", pair)
    shutil.rmtree(tmp_path / "pki")
    assert target.stat().st_mode & 0o777 == 0o600
    assert yaml.safe_load(target.read_text())["current-context"] == "fairlead-e2e"
    api = Api(target)
    assert (api.host, api.port) == ("10.245.255.2", 6443)
    assert api.tls.verify_mode is ssl.CERT_REQUIRED
