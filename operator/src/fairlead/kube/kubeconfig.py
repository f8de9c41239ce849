"""Where the API server is, and our credentials: from a kubeconfig, or from the ServiceAccount of the pod we run in.

Reads files, opens no connection. Users who log in by a program (`exec`, as EKS, GKE, AKS and most logins by OIDC write)
or a provider (`auth-provider`, the older way) get a `login`. Logins may take seconds, so call them in a thread;
credentials expire, and the caller logs in again.
"""

import base64
import binascii
import json
import os
import ssl
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from fairlead_common.http.addresses import authority, is_http_address, without_credentials
from fairlead_common.memory_files import memory_file

EXEC_SECONDS = 60.0
"""Longest run of a login program; some open a browser and wait for a person."""
_NEEDS_A_PERSON = "Always"


class LoginFailed(Exception):
    """The program or provider gave no credential; the text says which, why, and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A login's bearer token, or client certificate with key (PEM)."""

    token: str | None = None
    certificate: str | None = None
    key: str | None = None
    expires: datetime | None = None
    """None = not said: until the server refuses it."""


Login = Callable[[], Credential]
"""Blocking. Raises LoginFailed."""


def login_of(
    user: Mapping[str, Any], cluster: Mapping[str, Any], folder: Path, paths: Sequence[Path], context: str | None
) -> Login | None:
    """The login of a kubeconfig's user; None = the file holds credentials. `folder`: of the user's file. Raises
    LoginFailed for unusable entries."""
    if spec := user.get("exec"):
        if not isinstance(spec, dict) or not all(isinstance(spec.get(key), str) for key in ("command", "apiVersion")):
            raise LoginFailed("the user's exec needs a command and an apiVersion")
        entries = spec.get("env") or ()
        if not all(isinstance(entry, dict) and {"name", "value"} <= entry.keys() for entry in entries):
            raise LoginFailed("every entry in env of the user's exec needs a name and a value")
        return partial(_by_program, spec, cluster, folder)
    if provider := user.get("auth-provider"):
        if not isinstance(provider, dict) or not isinstance(provider.get("config"), dict) or not provider.get("name"):
            raise LoginFailed("the user's auth-provider needs a name and a config: log in anew, or use exec")
        return partial(_by_provider, paths, context, str(provider["name"]))
    return None


def _by_program(spec: Mapping[str, Any], cluster: Mapping[str, Any], folder: Path) -> Credential:
    """The protocol of client.authentication.k8s.io: the program prints an ExecCredential."""
    command, version = spec["command"], spec["apiVersion"]
    info: dict[str, Any] = {"interactive": spec.get("interactiveMode") == _NEEDS_A_PERSON}
    if spec.get("provideClusterInfo"):
        info["cluster"] = {key: value for key, value in cluster.items() if key != "extensions"}
    asked = {"apiVersion": version, "kind": "ExecCredential", "spec": info}
    environment = os.environ | {str(entry["name"]): str(entry["value"]) for entry in spec.get("env") or ()}
    program = str(folder / command) if os.sep in command else command  # relative to the kubeconfig, as kubectl has it
    try:
        ended = subprocess.run(
            [program, *map(str, spec.get("args") or ())],
            env=environment | {"KUBERNETES_EXEC_INFO": json.dumps(asked)},
            stdin=None if info["interactive"] else subprocess.DEVNULL,
            capture_output=True,
            timeout=EXEC_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        hint = f": {spec['installHint'].strip()}" if spec.get("installHint") else "; is it on PATH?"
        raise LoginFailed(f"the kubeconfig logs in by the program {command!r}, which is not there{hint}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LoginFailed(f"the kubeconfig logs in by the program {command!r}, which failed: {error}") from error
    if ended.returncode != 0:
        said = ended.stderr.decode(errors="replace").strip() or "it said nothing"
        raise LoginFailed(f"{command!r}, by which the kubeconfig logs in, ended with {ended.returncode}: {said[-500:]}")
    return _credential(command, version, ended.stdout)


def _credential(command: str, version: str, printed: bytes) -> Credential:
    try:
        document = json.loads(printed)
        status, answered = document["status"], document.get("apiVersion")
        expires = status.get("expirationTimestamp")
        found = Credential(
            token=status.get("token"),
            certificate=status.get("clientCertificateData"),
            key=status.get("clientKeyData"),
            expires=datetime.fromisoformat(expires) if expires else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoginFailed(
            f"{command!r}, by which the kubeconfig logs in, printed no ExecCredential: {error}"
        ) from error
    if answered != version:
        raise LoginFailed(f"{command!r} printed an ExecCredential of {answered}; the kubeconfig says {version}")
    if not found.token and not (found.certificate and found.key):
        raise LoginFailed(f"{command!r} printed an ExecCredential with neither a token nor a certificate with its key")
    return found


def _by_provider(paths: Sequence[Path], context: str | None, name: str) -> Credential:
    """By the official client, which refreshes expired tokens and writes nothing back."""
    try:
        from kubernetes import client, config
    except ImportError as error:
        hint = "pip install 'fairlead[logins]'"
        raise LoginFailed(f"the kubeconfig logs in by auth-provider {name!r}, which needs: {hint}") from error
    filled = client.Configuration()
    try:
        load: Any = config.load_kube_config
        load(os.pathsep.join(map(str, paths)), context, client_configuration=filled, persist_config=False)
        header = next((value for value in filled.api_key.values() if value), "")  # its name differs by version
    except Exception as error:  # whatever the provider's own libraries raise
        raise LoginFailed(f"auth-provider {name!r} of the kubeconfig failed: {error}") from error
    scheme, _, token = header.partition(" ")
    if scheme != "Bearer" or not token:
        raise LoginFailed(f"auth-provider {name!r} of the kubeconfig gave no token: log in anew, or use exec")
    return Credential(token=token)


SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SECTIONS = ("contexts", "clusters", "users")
_IMPERSONATION = ("as", "as-uid", "as-groups", "as-user-extra")


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
    proxy: str | None = None
    """URL of an HTTP proxy on the way to the server; None = none."""
    namespace: str | None = None
    """The context's default namespace; None = not said."""
    login: Login | None = None
    """Gives credentials instead of the fields above; None = not needed."""

    def with_credential(self, credential: Credential) -> "KubeConfig":
        """The same way with what a login gave."""
        certificate, key = credential.certificate, credential.key
        return replace(self, token=credential.token, certificate_data=certificate, key_data=key)

    def public(self, text: str) -> str:
        """`text` without our credentials, which some servers have in their URL or path."""
        server = without_credentials(self.server)
        return text.replace(self.server, server.replace(self.token, "…") if self.token else server)

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
                # The ssl module loads certificates from files only.
                with memory_file(f"{self.certificate_data}\n{self.key_data}".encode(), "kubeconfig") as file:
                    context.load_cert_chain(file)
        except (ssl.SSLError, ValueError) as e:
            raise KubeConfigError(f"the certificates for {self.public(self.server)} do not load: {e}") from e
        return context


def load(kubeconfig: Path | None = None, context: str | None = None) -> KubeConfig:
    """The given kubeconfig, else those in $KUBECONFIG, else in-cluster, else ~/.kube/config. Raises KubeConfigError
    where none exists or is usable."""
    if kubeconfig is not None:
        return from_kubeconfigs([kubeconfig], context)
    if listed := [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]:
        found = [path for path in listed if path.exists()]
        if not found:  # another cluster's credentials are not what was asked for
            named = ", ".join(map(str, listed))
            raise KubeConfigError(f"KUBECONFIG names no file that exists ({named}): correct it, or unset it")
        return from_kubeconfigs(found, context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (SERVICE_ACCOUNT_FOLDER / "token").is_file():
        return in_cluster()
    home = Path.home() / ".kube" / "config"
    if home.is_file():
        return from_kubeconfigs([home], context)
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


def from_kubeconfigs(paths: Sequence[Path], context: str | None = None) -> KubeConfig:
    """A context of kubeconfig files, merged as kubectl does: the first definition of a name wins. `context`: None = the
    current one. Raises KubeConfigError, naming the files."""
    documents = [(path, _document(path)) for path in paths]
    try:
        current = next((found for _, document in documents if (found := document.get("current-context"))), None)
        name = str(context or current or "")
        if not name:
            raise KubeConfigError("no context is chosen: name one with --context, or `kubectl config use-context NAME`")
        _, chosen = _named(documents, "context", name)
        if not chosen.get("cluster"):
            raise KubeConfigError(f"the context {name!r} names no cluster")
        cluster_file, cluster = _named(documents, "cluster", chosen["cluster"])
        user_file, user = _named(documents, "user", chosen["user"]) if chosen.get("user") else (paths[0], {})
        return KubeConfig(
            **_address(cluster),
            ca_data=_data(cluster_file, cluster, "certificate-authority"),
            namespace=_text(chosen, "namespace"),
            login=login_of(user, cluster, user_file.parent, paths, context),
            **_credentials(user_file, user),
        )
    except (KubeConfigError, LoginFailed) as e:
        raise KubeConfigError(f"{os.pathsep.join(map(str, paths))}: {e}") from e


def _document(path: Path) -> Mapping[str, Any]:
    import yaml  # a pod's ServiceAccount needs none

    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise KubeConfigError(f"cannot read the kubeconfig {path}: {e}") from e
    if document is None:  # kubectl takes an empty file for one that has nothing to say
        return {}
    sections = [document.get(key) or [] for key in _SECTIONS] if isinstance(document, dict) else [None]
    if not all(isinstance(items, list) and all(isinstance(each, dict) for each in items) for items in sections):
        raise KubeConfigError(f"{path} is not a kubeconfig: it needs lists of {', '.join(_SECTIONS)}")
    found: Mapping[str, Any] = document
    return found


def _named(documents: Iterable[tuple[Path, Mapping[str, Any]]], key: str, name: str) -> tuple[Path, Mapping[str, Any]]:
    """The first context, cluster or user with this name, and the file, to which paths are relative."""
    there: dict[str, tuple[Path, Any]] = {}
    for path, document in documents:
        for item in document.get(key + "s") or []:
            there.setdefault(str(item.get("name")), (path, item.get(key) or {}))
    if str(name) not in there:
        raise KubeConfigError(f"there is no {key} {name!r}, only: {', '.join(there) or 'none'}")
    path, found = there[str(name)]
    if not isinstance(found, dict):
        raise KubeConfigError(f"the {key} {name!r} is no mapping of fields to values")
    return path, found


def _address(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """The server and the way to it, as KubeConfig's fields."""
    server, proxy = (_text(cluster, "server") or "").rstrip("/"), _text(cluster, "proxy-url")
    if not is_http_address(server):
        given = f"the server {server!r}, which is no address" if server else "no server"
        raise KubeConfigError(f"the cluster has {given}: write https://HOST:PORT")
    if proxy is not None and not is_http_address(proxy):
        raise KubeConfigError("the cluster's proxy-url is no proxy that can be used: write http://HOST:PORT")
    insecure = cluster.get("insecure-skip-tls-verify") or False
    if not isinstance(insecure, bool):  # "false" in quotes is as true as any text
        raise KubeConfigError("insecure-skip-tls-verify is neither true nor false: write it without quotes")
    return {
        "server": server,
        "proxy": proxy,
        "insecure_skip_tls_verify": insecure,
        "tls_server_name": _text(cluster, "tls-server-name"),
    }


def _credentials(path: Path, user: Mapping[str, Any]) -> dict[str, Any]:
    """Credentials in the file itself, as KubeConfig's fields."""
    if acts_as := [key for key in _IMPERSONATION if user.get(key)]:
        raise KubeConfigError(
            f"the user acts as somebody else ({', '.join(acts_as)}), which only kubectl does: name a context "
            "whose user has the rights"
        )
    token_file = _text(user, "tokenFile")
    certificate, key = (_data(path, user, name) for name in ("client-certificate", "client-key"))
    if (certificate is None) != (key is None):
        missing = "client-key" if key is None else "client-certificate"
        raise KubeConfigError(f"the user has no {missing}: a certificate and its key go together")
    return {
        "token": _text(user, "token"),
        "token_file": path.parent / token_file if token_file else None,
        "username": _text(user, "username"),
        "password": _text(user, "password"),
        "certificate_data": certificate,
        "key_data": key,
    }


def _text(section: Mapping[str, Any], key: str) -> str | None:
    value = section.get(key)
    if value is not None and not isinstance(value, str):
        raise KubeConfigError(f"{key} is not a string: put it in quotes")  # its value may be a secret
    return value or None


def _data(path: Path, section: Mapping[str, Any], key: str) -> str | None:
    """Inline base64 `KEY-data`, else the file named by `KEY` (relative to the kubeconfig)."""
    inline, file = _text(section, f"{key}-data"), _text(section, key)
    try:
        if inline:
            return base64.b64decode(inline, validate=True).decode()
        return (path.parent / file).read_text() if file else None
    except (OSError, binascii.Error, UnicodeDecodeError) as e:
        raise KubeConfigError(f"cannot read {key}: {e}") from e
