"""As much of a Kubernetes client as starting a cluster needs: get and watch a path, with a kubeconfig's certificate."""

import base64
import http.client
import json
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml


class ApiError(Exception):
    """The API server answered with an error, or not at all (`status` 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status


class Api:
    """One API server, reached as the current context of a kubeconfig says (server and embedded client certificate)."""

    def __init__(self, kubeconfig: Path, timeout_seconds: float = 5.0) -> None:
        content = yaml.safe_load(kubeconfig.read_text())
        context = _named(content, "contexts", "context", content["current-context"])
        cluster = _named(content, "clusters", "cluster", context["cluster"])
        user = _named(content, "users", "user", context["user"])
        address = urlsplit(cluster["server"])
        self.host, self.port = address.hostname or "", address.port or 443
        self.timeout_seconds = timeout_seconds
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self.tls = ssl.create_default_context(cadata=authority)
        with tempfile.TemporaryDirectory() as folder:  # the ssl module reads certificates from files only
            pair = Path(folder) / "pair.pem"
            pair.touch(mode=0o600)
            pair.write_bytes(
                base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"])
            )
            self.tls.load_cert_chain(pair)

    def get(self, path: str) -> Any:
        """The JSON at `path`; text where it is none (health checks). Raises ApiError."""
        connection, response = self._request(path, self.timeout_seconds)
        try:
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(0, f"{path}: {error}") from error
        finally:
            connection.close()
        try:
            return json.loads(body)
        except ValueError:
            return body.decode(errors="replace")

    def watch(self, path: str, silence_seconds: float) -> Iterator[dict[str, Any]]:
        """The events of a watch, until the server ends it; ApiError after `silence_seconds` without a line."""
        connection, response = self._request(path, silence_seconds)
        try:
            for line in response:
                yield json.loads(line)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ApiError(0, f"{path}: {error}") from error
        finally:
            connection.close()

    def _request(self, path: str, timeout: float) -> tuple[http.client.HTTPSConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=self.tls)
        try:
            connection.request("GET", path, headers={"Accept": "application/json"})
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ApiError(0, f"{path}: {error}") from error
        if response.status != 200:
            message = response.read(2000).decode(errors="replace")
            connection.close()
            raise ApiError(response.status, f"{path}: {message}")
        return connection, response


def _named(content: dict[str, Any], plural: str, singular: str, name: str) -> dict[str, Any]:
    return next(entry[singular] for entry in content[plural] if entry["name"] == name)
