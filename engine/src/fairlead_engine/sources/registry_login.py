"""Credentials for a registry: name and password from the environment, and tokens obtained with them.

Searched in this order: OCI_USERNAME and OCI_PASSWORD; `.dockerconfigjson`, a variable with the content of Kubernetes'
secrets of the type kubernetes.io/dockerconfigjson; `config.json` in the folder DOCKER_CONFIG, or in `~/.docker`.
Credential helpers named in such a file are not run.

Source: https://distribution.github.io/distribution/spec/auth/token.
"""

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from yarl import URL

from fairlead_engine.sources.http_reader import HttpReader
from fairlead_engine.sources.remote import Interrupted, denied

USERNAME, PASSWORD = "OCI_USERNAME", "OCI_PASSWORD"
CONFIG = ".dockerconfigjson"
_PARAMETER = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))')
_LARGEST_TOKEN = 1 << 20


class RegistryLogin:
    """One repository of one registry. `is_plain`: whether a host may be used without TLS."""

    def __init__(self, registry: str, repository: str, is_plain: Callable[[str], bool]) -> None:
        self._registry = registry
        self._repository = repository
        self._is_plain = is_plain
        self.basic = _basic(registry, repository)
        """Header of the credentials; None = there are none."""

    async def authorization(self, challenge: str) -> str | None:
        """The header that a challenge (WWW-Authenticate) asks for; None = no suitable credentials. Raises
        DownloadError, Interrupted."""
        scheme, _, rest = challenge.strip().partition(" ")
        if scheme.lower() == "basic":
            return self.basic
        if scheme.lower() != "bearer":
            return None
        asked = {match[1].lower(): match[2] or match[3] or "" for match in _PARAMETER.finditer(rest)}
        realm = _address(asked.get("realm", ""))
        if realm.scheme != "https" and not (realm.scheme == "http" and self._is_plain(realm.authority)):
            raise denied(
                f"{self._registry} sends its clients for tokens to an address without TLS, which gets no password"
            )
        query = {"scope": asked.get("scope") or f"repository:{self._repository}:pull"}
        if service := asked.get("service"):
            query["service"] = service
        return await self._token(f"{realm}{'&' if realm.query_string else '?'}{urlencode(query)}")

    async def _token(self, url: str) -> str | None:
        http = HttpReader(self.basic)
        try:
            status, _, content = await http.whole(url, _LARGEST_TOKEN)
        finally:
            await http.close()
        if status != HTTPStatus.OK:
            return None
        try:
            given = json.loads(content or b"")
            token = given.get("token") or given.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if not isinstance(token, str) or not token.isprintable():
            raise Interrupted(f"{URL(url).host} gives no token that can be read")
        return f"Bearer {token}"


def _address(realm: str) -> URL:
    """Address for tokens; empty = none."""
    try:
        found = URL(realm)
        return found if found.host else URL()
    except ValueError:
        return URL()


def _basic(registry: str, repository: str) -> str | None:
    """The header; None = no credentials for this registry. Raises DownloadError for unreadable credentials."""
    name, password = os.environ.get(USERNAME), os.environ.get(PASSWORD)
    if name or password:
        if not name or not password:
            missing = PASSWORD if name else USERNAME
            raise denied(f"{missing} is not set, and the other half is: set both")
        return _header(f"{name}:{password}")
    if content := os.environ.get(CONFIG):
        return _of_config(content, CONFIG, registry, repository)
    path = Path(os.environ.get("DOCKER_CONFIG") or "~/.docker").expanduser() / "config.json"
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return _of_config(content, str(path), registry, repository)


def _of_config(content: str, where: str, registry: str, repository: str) -> str | None:
    """The entry with the longest matching prefix of the repository's name."""
    try:
        auths = json.loads(content).get("auths") or {}
        found = [(len(key), entry) for key, entry in auths.items() if _is_for(key, registry, repository)]
        return _of_entry(max(found, key=lambda each: each[0])[1]) if found else None
    except (ValueError, AttributeError, TypeError, RecursionError, binascii.Error):
        raise denied(
            f'{where} is no configuration of docker\'s: {{"auths": {{"REGISTRY": {{"username": …, "password": …}}}}}}'
        ) from None


def _of_entry(entry: Mapping[str, Any]) -> str | None:
    if entry.get("username") and entry.get("password"):
        return _header(f"{entry['username']}:{entry['password']}")
    if entry.get("auth"):
        return _header(base64.b64decode(entry["auth"], validate=True).decode())
    return None


def _is_for(key: str, registry: str, repository: str) -> bool:
    host, _, path = key.partition("://")[2].partition("/") if "://" in key else key.partition("/")
    hosts = {registry, "index.docker.io"} if registry == "docker.io" else {registry}
    path = path.strip("/")
    return host in hosts and (path in ("", "v1", "v2") or f"{repository}/".startswith(f"{path}/"))


def _header(pair: str) -> str:
    return "Basic " + base64.b64encode(pair.encode()).decode()
