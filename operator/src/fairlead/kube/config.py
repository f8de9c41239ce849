"""Where the API server is and who we are to it: a kubeconfig, or the ServiceAccount of the pod we run in.

Reads files, opens no connection. Users who log in by a program or a provider get a `login`, which others call.
"""

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from fairlead.addresses import authority
from fairlead.kube.login import Credential, Login, login_of

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class KubeConfigError(Exception):
    """No usable way to the API server; the message says what was looked for, and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeConfig:
    """One way to one API server."""

    server: str
    """Base URL, without a trailing slash."""
    token: str | None = None
    """Bearer token; None = another kind of credential, or none."""
    token_file: Path | None = None
    """Read again now and then, because ServiceAccount tokens are rotated; goes before `token`."""
    username: str | None = None
    password: str | None = None
    """Basic authentication, with `username`."""
    ca_data: str | None = None
    """PEM of the authority that signed the server's certificate; None = the system's authorities."""
    certificate_data: str | None = None
    """PEM of our client certificate; None = none."""
    key_data: str | None = None
    """PEM of the client certificate's private key."""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    """Name to expect in the server's certificate; None = the host of `server`."""
    namespace: str | None = None
    """The context's default namespace; None = not said."""
    login: Login | None = None
    """Gives the credentials, instead of the fields above; None = nothing has to be done to get them."""

    def with_credential(self, credential: Credential) -> "KubeConfig":
        """The same way with what a login gave."""
        certificate, key = credential.certificate, credential.key
        return replace(self, token=credential.token, certificate_data=certificate, key_data=key)

    def ssl_context(self) -> ssl.SSLContext | None:
        """For https servers; None for plain http. Raises KubeConfigError for certificates that do not load."""
        if not self.server.startswith("https://"):
            return None
        try:
            context = ssl.create_default_context(cadata=self.ca_data)
            if self.insecure_skip_tls_verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.certificate_data is not None and self.key_data is not None:
                _load_client_certificate(context, self.certificate_data, self.key_data)
        except (ssl.SSLError, ValueError) as e:
            raise KubeConfigError(f"the certificates for {self.server} do not load: {e}") from e
        return context


def load(kubeconfig: Path | None = None, context: str | None = None) -> KubeConfig:
    """The given kubeconfig, else $KUBECONFIG (the first file that exists), else in-cluster, else ~/.kube/config.

    Raises KubeConfigError when none of them is there, or when the one found cannot be used.
    """
    if kubeconfig is not None:
        return from_kubeconfig(kubeconfig, context)
    for name in filter(None, os.environ.get("KUBECONFIG", "").split(os.pathsep)):
        if Path(name).is_file():
            return from_kubeconfig(Path(name), context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (SERVICE_ACCOUNT_FOLDER / "token").is_file():
        return in_cluster()
    home = Path.home() / ".kube" / "config"
    if home.is_file():
        return from_kubeconfig(home, context)
    raise KubeConfigError(
        "found no Kubernetes API: no --kubeconfig, no file named by KUBECONFIG, not in a pod, no ~/.kube/config"
    )


def in_cluster(folder: Path = SERVICE_ACCOUNT_FOLDER) -> KubeConfig:
    """The ServiceAccount mounted into our pod."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    namespace = folder / "namespace"
    return KubeConfig(
        server=f"https://{authority(host, port)}",
        token_file=folder / "token",
        ca_data=(folder / "ca.crt").read_text(),
        namespace=namespace.read_text().strip() if namespace.is_file() else None,
    )


def from_kubeconfig(path: Path, context: str | None = None) -> KubeConfig:
    """The context of a kubeconfig file; None = its current one. Raises KubeConfigError, naming the file."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise KubeConfigError(f"cannot read the kubeconfig {path}: {e}") from e
    if not isinstance(document, dict):
        raise KubeConfigError(f"{path} is not a kubeconfig")
    try:
        chosen = _named(document, "contexts", context or document.get("current-context"), "context")
        cluster = _named(document, "clusters", chosen.get("cluster"), "cluster")
        user = _named(document, "users", chosen["user"], "user") if chosen.get("user") else {}
        found = _from_parts(path, cluster, user, chosen.get("namespace"))
        return replace(found, login=login_of(path, user, cluster, context))
    except KubeConfigError as e:
        raise KubeConfigError(f"{path}: {e}") from e


def _from_parts(path: Path, cluster: Mapping[str, Any], user: Mapping[str, Any], namespace: str | None) -> KubeConfig:
    if not cluster.get("server"):
        raise KubeConfigError("the cluster has no server")
    token_file = user.get("tokenFile")
    return KubeConfig(
        server=str(cluster["server"]).rstrip("/"),
        token=user.get("token"),
        token_file=path.parent / token_file if token_file else None,
        username=user.get("username"),
        password=user.get("password"),
        ca_data=_data(path, cluster, "certificate-authority"),
        certificate_data=_data(path, user, "client-certificate"),
        key_data=_data(path, user, "client-key"),
        insecure_skip_tls_verify=bool(cluster.get("insecure-skip-tls-verify", False)),
        tls_server_name=cluster.get("tls-server-name"),
        namespace=namespace,
    )


def _named(document: Mapping[str, Any], section: str, name: str | None, key: str) -> dict[str, Any]:
    if not name:
        raise KubeConfigError(f"no {key} is chosen")
    for item in document.get(section) or []:
        if item.get("name") == name:
            return dict(item.get(key) or {})
    raise KubeConfigError(f"there is no {key} {name!r} in it")


def _data(path: Path, section: Mapping[str, Any], key: str) -> str | None:
    """Inline base64 `KEY-data`, else the file named by `KEY` (relative to the kubeconfig)."""
    inline, file = section.get(f"{key}-data"), section.get(key)
    try:
        if inline:
            return base64.b64decode(inline, validate=True).decode()
        return (path.parent / file).read_text() if file else None
    except (OSError, binascii.Error, UnicodeDecodeError) as e:
        raise KubeConfigError(f"cannot read {key}: {e}") from e


def _load_client_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """The ssl module loads certificates from files only, so they pass through a private one."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # created with mode 0600
        file.write(certificate + "\n" + key)
        file.flush()
        context.load_cert_chain(file.name)
