"""Logging in to an API server by what a kubeconfig's user names: a program (`exec`, as EKS, GKE, AKS and most logins by
OIDC write it) or a provider (`auth-provider`, the older way of OIDC and clouds).

Called by `kubeconfig.py`, and through it by whoever opens connections. What comes of a login expires; when it is made
again is the caller's business. It may take seconds, so call it in a thread.
"""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

EXEC_SECONDS = 60.0
"""How long a program may take: some of them open a browser and wait for a person."""
_NEEDS_A_PERSON = "Always"


class LoginFailed(Exception):
    """The program or the provider gave no credential; the text says which, why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What a login gave: a bearer token, or a client certificate with its key (PEM)."""

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
    """How this user of the kubeconfigs at `paths` logs in; None where they hold the credentials themselves.

    `folder`: of the file that has the user. Raises LoginFailed for what says nothing usable.
    """
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
    """The official client knows them: it refreshes what has expired, and writes nothing back."""
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
