"""The kubeconfig that local mode writes: all that kubectl, kopf or any client needs to reach its API."""

import os
import secrets
from pathlib import Path

import yaml

from fairlead_local.apiserver.access import token_path


def new_token() -> str:
    """A bearer token: 256 random bits."""
    return secrets.token_urlsafe(32)


def write_kubeconfig(path: Path, url: str, token: str) -> None:
    """Writes the file, readable by its owner only. `url` is the API server's. Raises OSError when it cannot."""
    server = url + token_path(token)
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fairlead-local",
        "clusters": [{"name": "fairlead-local", "cluster": {"server": server}}],
        "users": [{"name": "fairlead-local", "user": {"token": token}}],
        "contexts": [
            {
                "name": "fairlead-local",
                "context": {"cluster": "fairlead-local", "user": "fairlead-local", "namespace": "default"},
            }
        ],
    }
    fresh = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        yaml.safe_dump(document, file, sort_keys=False)
    fresh.replace(path)
