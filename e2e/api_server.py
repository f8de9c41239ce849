"""A cluster's API as one ServiceAccount sees it: plain HTTP with that account's own token, past kubectl."""

import base64
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from homes import Fleet

Json = dict[str, Any]


class ApiServer:
    """The API server of a fleet, asked with the token of a ServiceAccount."""

    def __init__(self, fleet: Fleet, namespace: str, account: str) -> None:
        """Has a token made for `account` of `namespace`."""
        config = yaml.safe_load(Path(fleet.kubeconfig).read_text())
        cluster = config["clusters"][0]["cluster"]
        self.name = f"{namespace}/{account}"
        self._server = cluster["server"].rstrip("/")
        self._context = _tls(cluster) if self._server.startswith("https") else None
        self._token = fleet.token(namespace, account)

    def call(self, method: str, path: str, body: Json | None = None, *, dry_run: bool = True) -> tuple[int, Json]:
        """(status, answer). What is not read is only tried: with `dry_run` the server is asked to change nothing."""
        if method != "GET" and dry_run:
            path += ("&" if "?" in path else "?") + "dryRun=All"
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(
            self._server + path,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"authorization": f"Bearer {self._token}", "content-type": kind},
        )
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, _document(error.read())

    def rules(self, namespace: str) -> list[Json]:
        """What the account may do there, as the server itself sums it up."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        }
        status, answer = self.call(
            "POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review, dry_run=False
        )
        assert status == 201, answer
        rules: list[Json] = answer["status"]["resourceRules"]
        return rules


def _tls(cluster: Json) -> ssl.SSLContext:
    if cluster.get("insecure-skip-tls-verify"):
        return ssl._create_unverified_context()
    if "certificate-authority-data" in cluster:
        return ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    return ssl.create_default_context(cafile=cluster.get("certificate-authority"))


def _document(content: bytes) -> Json:
    try:
        document = json.loads(content)
    except ValueError:
        return {"message": content.decode(errors="replace")}
    return document if isinstance(document, dict) else {"message": str(document)}
