"""Kubeconfigs whose user logs in by a program or a provider: what is asked of it, told of it, and when again."""

import base64
import json
import stat
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from fairlead.controller.handlers import connection_info
from fairlead.kube.client import KubeClient, KubeError
from fairlead.kube.kubeconfig import from_kubeconfigs
from fairlead_testing.api_servers import answering

VERSION = "client.authentication.k8s.io/v1"
PROGRAM = """#!{python}
import json, os, pathlib, sys
count = pathlib.Path(sys.argv[1])
count.write_text(count.read_text() + "x" if count.exists() else "x")
asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
assert asked["kind"] == "ExecCredential" and os.environ["REGION"] == "here"
status = {{"token": f"token-{{len(count.read_text())}}"}}
if len(sys.argv) > 2:
    status["expirationTimestamp"] = sys.argv[2]
print(json.dumps({{"apiVersion": asked["apiVersion"], "kind": "ExecCredential", "status": status}}))
"""


def kubeconfig(folder: Path, user: dict[str, Any], server: str = "http://127.0.0.1:1") -> Path:
    path = folder / "config"
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def program(folder: Path, text: str = PROGRAM) -> str:
    path = folder / "login"
    path.write_text(text.format(python=sys.executable) if text is PROGRAM else text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return "./login"  # relative to the kubeconfig, not to where the command is run


def by_program(folder: Path, *more: str, text: str = PROGRAM, **spec: Any) -> dict[str, Any]:
    environment = [{"name": "REGION", "value": "here"}]
    arguments = [str(folder / "count"), *more]
    asked = {"apiVersion": VERSION, "command": program(folder, text), "args": arguments, "env": environment}
    return {"exec": {**asked, "interactiveMode": "Never", **spec}}


@asynccontextmanager
async def api_server(*refused: str) -> AsyncIterator[tuple[str, list[str]]]:
    """Says which tokens it saw; those `refused` get 401."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        seen.append(token)
        return web.json_response({"kind": "Status"}, status=401 if token in refused else 200)

    async with answering(answer) as server:
        yield server, seen


@pytest.mark.parametrize(("year", "tokens"), [(2999, [1, 1, 1]), (2020, [1, 2, 3])])
async def test_a_program_is_asked_once_for_as_long_as_its_token_holds(
    tmp_path: Path, year: int, tokens: list[int]
) -> None:
    async with api_server() as (server, seen):
        path = kubeconfig(tmp_path, by_program(tmp_path, f"{year}-01-01T00:00:00Z"), server)
        async with await KubeClient.from_environment(path) as client:
            for _ in range(3):
                await client.request("GET", "/api")
    assert seen == [f"token-{number}" for number in tokens]


async def test_a_token_that_is_refused_is_renewed(tmp_path: Path) -> None:
    async with api_server("token-1") as (server, seen):
        path = kubeconfig(tmp_path, by_program(tmp_path), server)
        async with await KubeClient.from_environment(path) as client:
            with pytest.raises(KubeError) as refused:
                await client.request("GET", "/api")
            assert refused.value.status == 401
            await client.request("GET", "/api")
            await client.request("GET", "/api")
    assert seen == ["token-1", "token-2", "token-2"]


@pytest.mark.parametrize(
    ("text", "spec", "words"),
    [
        (PROGRAM, {"command": "no-such-login", "installHint": "get it from the port"}, "get it from the port"),
        ("#!/bin/sh\necho you shall not pass >&2\nexit 3\n", {}, "ended with 3: you shall not pass"),
        ("#!/bin/sh\necho hello\n", {}, "printed no ExecCredential"),
        (
            '#!/bin/sh\necho \'{"apiVersion": "other/v1", "status": {"token": "t"}}\'\n',
            {},
            "ExecCredential of other/v1",
        ),
        (
            '#!/bin/sh\necho \'{"apiVersion": "client.authentication.k8s.io/v1", "status": {}}\'\n',
            {},
            "neither a token nor a certificate",
        ),
    ],
)
async def test_a_login_that_fails_says_which_and_why(
    tmp_path: Path, text: str, spec: dict[str, Any], words: str
) -> None:
    user = by_program(tmp_path, text=text, **spec)
    async with await KubeClient.from_environment(kubeconfig(tmp_path, user)) as client:
        with pytest.raises(KubeError, match=words) as failed:
            await client.request("GET", "/api")
    assert user["exec"]["command"] in failed.value.message


async def test_every_command_logs_in_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator, whose events come through kopf, too."""
    info = connection_info(from_kubeconfigs([kubeconfig(tmp_path, by_program(tmp_path, "2999-01-01T00:00:00Z"))]))
    assert (info.scheme, info.token) == ("Bearer", "token-1")
    assert info.expiration is not None and info.expiration.year == 2999


def unsigned(claims: dict[str, Any]) -> str:
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims, {}))
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


@pytest.fixture
def oidc_user() -> dict[str, Any]:
    token = unsigned({"exp": int(time.time()) + 3600})
    configuration = {"id-token": token, "client-id": "c", "idp-issuer-url": "http://127.0.0.1:1"}
    return {"auth-provider": {"name": "oidc", "config": configuration}}


async def test_the_older_way_of_oidc_goes_through_the_official_client(
    tmp_path: Path, oidc_user: dict[str, Any]
) -> None:
    async with api_server() as (server, seen):
        path = kubeconfig(tmp_path, oidc_user, server)
        async with await KubeClient.from_environment(path) as client:
            await client.request("GET", "/api")
    assert seen == [oidc_user["auth-provider"]["config"]["id-token"]]


async def test_without_the_official_client_it_is_said_what_to_install(
    tmp_path: Path, oidc_user: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    async with await KubeClient.from_environment(kubeconfig(tmp_path, oidc_user)) as client:
        with pytest.raises(KubeError, match=r"pip install 'fairlead\[logins\]'"):
            await client.request("GET", "/api")
