"""Finding the API server: kubeconfigs, the pod's own credentials, and errors that say what was looked for."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.kube.kubeconfig import KubeConfig, KubeConfigError, from_kubeconfigs, in_cluster, load


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
    config = from_kubeconfigs([kubeconfig(tmp_path, user={"token": "t"})])
    assert config == KubeConfig(server="http://127.0.0.1:1", token="t", namespace="ships")
    assert config.ssl_context() is None


def test_files_are_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CA")
    path = kubeconfig(tmp_path, cluster={"certificate-authority": "ca.pem"}, user={"tokenFile": "token"})
    config = from_kubeconfigs([path])
    assert config.ca_data == "CA"
    assert config.token_file == tmp_path / "token"


def test_inline_data_is_decoded(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    config = from_kubeconfigs([kubeconfig(tmp_path, user={"client-certificate-data": data, "client-key-data": data})])
    assert (config.certificate_data, config.key_data) == ("PEM", "PEM")


@pytest.mark.parametrize(
    ("context", "cluster", "user", "message"),
    [
        ("absent", {}, {}, "no context 'absent'"),
        ("broken", {}, {}, "no cluster 'missing'"),
        (None, {"server": ""}, {}, "no server"),
        (None, {"certificate-authority": "missing.pem"}, {}, "cannot read certificate-authority"),
        (None, {"certificate-authority-data": "%%%"}, {}, "cannot read certificate-authority"),
        (None, {"proxy-url": "socks5://127.0.0.1:1080"}, {}, "proxy-url is no proxy that can be used"),
        (None, {}, {"token": "t", "as": "root"}, r"acts as somebody else \(as\)"),
        (None, {}, {"as": "root", "as-groups": ["system:masters"]}, r"acts as somebody else \(as, as-groups\)"),
        (None, {"server": "nonsense"}, {}, "'nonsense', which is no address: write https://HOST:PORT"),
        (None, {"server": "ftp://127.0.0.1"}, {}, "'ftp://127.0.0.1', which is no address"),
        (None, {"server": "https://127.0.0.1:port"}, {}, "which is no address"),
        (None, {"server": 7443}, {}, "server is not a string"),
        (None, {}, {"token": 12345}, "token is not a string: put it in quotes"),
        (None, {"insecure-skip-tls-verify": "false"}, {}, "insecure-skip-tls-verify is neither true nor false"),
        (None, {}, {"client-certificate-data": "UEVN"}, "the user has no client-key"),
        (None, {}, {"auth-provider": {"name": "oidc"}}, "auth-provider needs a name and a config"),
        (None, {}, {"auth-provider": "oidc"}, "auth-provider needs a name and a config"),
        (None, {}, {"exec": {"command": "login"}}, "exec needs a command and an apiVersion"),
        (None, {}, {"exec": {"command": "a", "apiVersion": "v1", "env": {"A": "b"}}}, "every entry in env"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_file(
    tmp_path: Path, context: str | None, cluster: dict[str, Any], user: dict[str, Any], message: str
) -> None:
    path = kubeconfig(tmp_path, cluster=cluster, user=user)
    with pytest.raises(KubeConfigError, match=message) as raised:
        from_kubeconfigs([path], context)
    assert str(path) in str(raised.value)


def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeConfigError, match="cannot read the kubeconfig"):
        from_kubeconfigs([tmp_path / "absent"])
    for text in ("[]", "nonsense", "users: nobody", "contexts: [one]"):
        (tmp_path / "other").write_text(text)
        with pytest.raises(KubeConfigError, match="other is not a kubeconfig"):
            from_kubeconfigs([tmp_path / "other"])
    (tmp_path / "empty").write_text("")
    with pytest.raises(KubeConfigError, match="no context is chosen: name one with --context"):
        from_kubeconfigs([tmp_path / "empty"])


def test_several_files_are_one_as_for_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever names something first has it; paths are relative to the file that they stand in."""
    (tmp_path / "mine").mkdir()
    contexts = {
        "current-context": "late",
        "contexts": [{"name": "early", "context": {"cluster": "c", "user": "u", "namespace": "mine"}}],
        "users": [{"name": "u", "user": {"tokenFile": "mine.token"}}],
    }
    (tmp_path / "mine" / "config").write_text(yaml.safe_dump(contexts))
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "ca.pem").write_text("CA")
    clusters = {
        "current-context": "other",
        "contexts": [
            {"name": "early", "context": {"cluster": "nowhere"}},
            {"name": "late", "context": {"cluster": "c", "user": "u", "namespace": "theirs"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "https://c", "certificate-authority": "ca.pem"}}],
        "users": [{"name": "u", "user": {"token": "theirs"}}],
    }
    (tmp_path / "theirs" / "config").write_text(yaml.safe_dump(clusters))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/mine/config:{tmp_path}/missing:{tmp_path}/theirs/config")
    late = load()
    assert (late.server, late.ca_data, late.namespace) == ("https://c", "CA", "theirs")
    assert (late.token_file, late.token) == (tmp_path / "mine" / "mine.token", None)
    assert load(context="early").namespace == "mine"
    with pytest.raises(KubeConfigError, match="no context 'third', only: early, late"):
        load(context="third")


def test_a_variable_that_names_nothing_never_leads_to_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".kube").mkdir()
    kubeconfig(tmp_path / ".kube", user={"token": "home"})
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/typo")
    with pytest.raises(KubeConfigError, match=r"KUBECONFIG names no file that exists \(.*typo\)"):
        load()


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
