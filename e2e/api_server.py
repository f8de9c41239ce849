"""A cluster's API as one ServiceAccount sees it: plain HTTP with that account's own token, past kubectl."""

import base64
import ssl
from typing import Any

import httpx
import yaml
from homes import Fleet

Json = dict[str, Any]


class ApiServer:
    """The API server of a fleet, asked with the token of a ServiceAccount."""

    def __init__(self, fleet: Fleet, namespace: str, account: str) -> None:
        """Has a token made for `account` of `namespace`."""
        cluster = yaml.safe_load(fleet.kubeconfig.read_text())["clusters"][0]["cluster"]
        self.name = f"{namespace}/{account}"
        self._server, self._tls = cluster["server"].rstrip("/"), _tls(cluster)
        self._token = fleet.token(namespace, account)

    def call(self, method: str, path: str, body: Json | None = None, *, dry_run: bool = True) -> tuple[int, Json]:
        """(status, answer). What is not read is only tried: with `dry_run` the server is asked to change nothing."""
        if method != "GET" and dry_run:
            path += ("&" if "?" in path else "?") + "dryRun=All"
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"authorization": f"Bearer {self._token}", "content-type": kind}
        reply = httpx.request(
            method, self._server + path, json=body, headers=headers, verify=self._tls, trust_env=False, timeout=60.0
        )
        is_json = "json" in reply.headers.get("content-type", "")
        return reply.status_code, reply.json() if is_json else {"message": reply.text}


def _tls(cluster: Json) -> ssl.SSLContext | bool:
    if cluster.get("insecure-skip-tls-verify"):
        return False
    authority = base64.b64decode(cluster.get("certificate-authority-data", "")).decode()
    return ssl.create_default_context(cadata=authority or None)
