"""Finding the API server: kubeconfigs, the pod's own credentials, and errors that say what was looked for."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.kube.config import KubeConfig, KubeConfigError, from_kubeconfig, in_cluster, load


def kubeconfig(folder: Path, *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> Path:
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "one",
                "contexts": [
                    {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "ships"}},
                    {"name": "broken", "context": {"cluster": "missing", "user": "u"}},
                ],
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/"} | (cluster or {})}],
                "users": [{"name": "u", "user": user or {}}],
            }
        )
    )
    return path


def test_the_current_context_is_used(tmp_path: Path) -> None:
    config = from_kubeconfig(kubeconfig(tmp_path, user={"token": "t"}))
    assert config == KubeConfig(server="http://127.0.0.1:1", token="t", namespace="ships")
    assert config.ssl_context() is None


def test_files_are_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CA")
    path = kubeconfig(tmp_path, cluster={"certificate-authority": "ca.pem"}, user={"tokenFile": "token"})
    config = from_kubeconfig(path)
    assert config.ca_data == "CA"
    assert config.token_file == tmp_path / "token"


def test_inline_data_is_decoded(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    config = from_kubeconfig(kubeconfig(tmp_path, user={"client-certificate-data": data, "client-key-data": data}))
    assert (config.certificate_data, config.key_data) == ("PEM", "PEM")


@pytest.mark.parametrize(
    ("context", "cluster", "user", "message"),
    [
        ("absent", {}, {}, "no context 'absent'"),
        ("broken", {}, {}, "no cluster 'missing'"),
        (None, {"server": ""}, {}, "no server"),
        (None, {"certificate-authority": "missing.pem"}, {}, "cannot read certificate-authority"),
        (None, {"certificate-authority-data": "%%%"}, {}, "cannot read certificate-authority"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_file(
    tmp_path: Path, context: str | None, cluster: dict[str, Any], user: dict[str, Any], message: str
) -> None:
    path = kubeconfig(tmp_path, cluster=cluster, user=user)
    with pytest.raises(KubeConfigError, match=message) as raised:
        from_kubeconfig(path, context)
    assert str(path) in str(raised.value)


def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeConfigError, match="cannot read the kubeconfig"):
        from_kubeconfig(tmp_path / "absent")
    (tmp_path / "list").write_text("[]")
    with pytest.raises(KubeConfigError, match="is not a kubeconfig"):
        from_kubeconfig(tmp_path / "list")


def test_bad_certificates_are_refused_before_any_connection(tmp_path: Path) -> None:
    with pytest.raises(KubeConfigError, match="do not load"):
        KubeConfig(server="https://127.0.0.1", ca_data="not a certificate").ssl_context()


def test_insecure_means_no_verification() -> None:
    context = KubeConfig(server="https://127.0.0.1", insecure_skip_tls_verify=True).ssl_context()
    assert context is not None
    assert context.check_hostname is False


def test_the_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeConfigError, match="no --kubeconfig, no file named by KUBECONFIG"):
        load()
    (tmp_path / ".kube").mkdir()
    kubeconfig(tmp_path / ".kube", user={"token": "home"})
    assert load().token == "home"
    (tmp_path / "env").mkdir()
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/missing:{kubeconfig(tmp_path / 'env', user={'token': 'env'})}")
    assert load().token == "env"
    (tmp_path / "given").mkdir()
    assert load(kubeconfig(tmp_path / "given", user={"token": "given"})).token == "given"


def test_a_pod_uses_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    for name, text in (("token", "t"), ("ca.crt", "CA"), ("namespace", "ships\n")):
        (tmp_path / name).write_text(text)
    config = in_cluster(tmp_path)
    assert config.server == "https://[fd00::1]:6443"
    assert (config.token_file, config.ca_data, config.namespace) == (tmp_path / "token", "CA", "ships")
