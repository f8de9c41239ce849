"""Who may call the API: whoever holds the token and is not a web page; and the kubeconfig that says so to clients.

The token comes as a bearer token, or as a prefix of the path. The prefix is there for kubectl, which sends a
kubeconfig's credentials over TLS only; a certificate would bring nothing on loopback, and every client knows how to
talk to an API server below a path.
"""

import hmac
import os
import secrets
from pathlib import Path

import yaml
from aiohttp import web

from fairlead_local.apiserver.status import StatusError, forbidden

_PREFIX = "token"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def admit(request: web.Request, token: str) -> list[str]:
    """The segments of the path, without the token; raises 401 for a client without the token."""
    parts = [part for part in request.path.split("/") if part]
    if parts[:1] == [_PREFIX] and len(parts) > 1:
        given, parts = parts[1], parts[2:]
    else:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), token.encode()):
        text = "Unauthorized: use the server of the kubeconfig with its whole path, or send the token as a bearer token"
        raise StatusError(401, "Unauthorized", text)
    return parts


def refuse_web_pages(request: web.Request) -> None:
    """Raises 403. A page in a browser can reach loopback, but cannot help sending its Origin, nor forge the Host."""
    if "Origin" in request.headers:
        raise forbidden("request", request.path, "requests from web pages (with an Origin header) are refused")
    name, _, port = request.host.rpartition(":")
    local = request.transport.get_extra_info("sockname") if request.transport else None
    if name not in _LOOPBACK or (local and port != str(local[1])):
        raise forbidden("request", request.path, f"the host {request.host!r} is not this API server's")


def new_token() -> str:
    """A bearer token: 256 random bits."""
    return secrets.token_urlsafe(32)


def write_kubeconfig(path: Path, url: str, token: str) -> None:
    """Writes the file, readable by its owner only. `url` is the API server's. Raises OSError when it cannot."""
    name = "fairlead-local"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": f"{url}/{_PREFIX}/{token}"}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
    }
    fresh = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        yaml.safe_dump(document, file, sort_keys=False)
    fresh.replace(path)
