"""KubeClient over TLS, as clusters speak it: authorities, client certificates, names, proxies, and what is said of
those that do not fit."""

import asyncio
import json
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from cluster import pki

from fairlead.kube.client import KubeClient, KubeError
from fairlead.kube.kubeconfig import Credential, KubeConfig
from fairlead.kube.resources import PODS
from fairlead_testing.api_servers import answering

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> pki.Authority:
    made = pki.Authority(tmp_path_factory.mktemp("pki"))
    made.create()
    made.server("server", "server", ["127.0.0.1"], ["kubernetes.default.svc"])
    for name in ("alice", "bob"):
        made.client(name, name)
    return made


def read(authority: pki.Authority, file: str) -> str:
    return (authority.folder / file).read_text()


@asynccontextmanager
async def api_server(authority: pki.Authority, *, asks: bool = True) -> AsyncIterator[str]:
    """Its URL. It answers with the client's name and token, and a watch of two events; `asks`: for a certificate."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    tls.load_cert_chain(authority.folder / "server.crt", authority.folder / "server.key")
    tls.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            for kind in ("ADDED", "DELETED"):
                await response.write(json.dumps({"type": kind, "object": {"data": "x" * 200_000}}).encode() + b"\n")
            return response
        assert request.transport is not None
        subject = (request.transport.get_extra_info("peercert") or {}).get("subject", ())
        names = [value for part in subject for key, value in part if key == "commonName"]
        if names == ["bob"] and request.path == "/refused":
            return web.json_response({"kind": "Status", "reason": "Unauthorized", "message": "no"}, status=401)
        return web.json_response({"names": names, "token": request.headers.get("authorization"), "path": request.path})

    async with answering(answer, tls) as server:
        yield server


@asynccontextmanager
async def connected(
    authority: pki.Authority, *, asks: bool = True, trusting: bool = True, **config: Any
) -> AsyncIterator[KubeClient]:
    """A client of such a server; `trusting`: it knows the authority."""
    ca_data = authority.certificate.read_text() if trusting else None
    async with (
        api_server(authority, asks=asks) as server,
        KubeClient(KubeConfig(server=server, ca_data=ca_data, **config), timeout=5) as client,
    ):
        yield client


async def test_a_client_certificate_is_presented_and_the_authority_checked(authority: pki.Authority) -> None:
    certified = {"certificate_data": read(authority, "alice.crt"), "key_data": read(authority, "alice.key")}
    async with connected(authority, **certified) as client:
        assert (await client.request("GET", "/api"))["names"] == ["alice"]
        events = [event["type"] async for event in client.watch(PODS, resource_version="1")]
    assert events == ["ADDED", "DELETED"]


async def test_a_server_refuses_who_has_no_certificate(authority: pki.Authority) -> None:
    async with connected(authority) as client:
        with pytest.raises(KubeError, match=r"(?i)certificate.required|connection was lost") as refused:
            await client.request("GET", "/api")
    assert refused.value.may_pass


async def test_a_pods_token_and_authority_are_used(authority: pki.Authority, tmp_path: Any) -> None:
    (tmp_path / "token").write_text("t0k3n")
    pod = {"token_file": tmp_path / "token", "tls_server_name": "kubernetes.default.svc"}
    async with connected(authority, asks=False, **pod) as client:
        assert (await client.request("GET", "/api"))["token"] == "Bearer t0k3n"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "has a certificate that is not trusted: .*CERTIFICATE_VERIFY_FAILED"),
        ({"tls_server_name": "other"}, "has a certificate that is not trusted: "),
        ({"insecure_skip_tls_verify": True, "tls_server_name": "other"}, None),
    ],
)
async def test_servers_that_are_not_who_they_should_be_are_named(
    authority: pki.Authority, more: dict[str, Any], words: str | None
) -> None:
    async with connected(authority, asks=False, trusting="tls_server_name" in more, **more) as client:
        server = client.config.server
        if words is None:
            assert (await client.request("GET", "/api"))["path"] == "/api"
            return
        with pytest.raises(KubeError, match=f"GET {server}/api: {server.removeprefix('https://')} {words}"):
            await client.request("GET", "/api")


async def test_a_login_that_gives_another_certificate_is_used_from_then_on(authority: pki.Authority) -> None:
    names = iter(("bob", "alice"))

    def login() -> Credential:
        name = next(names)
        return Credential(certificate=read(authority, f"{name}.crt"), key=read(authority, f"{name}.key"))

    async with connected(authority, login=login) as client:
        assert (await client.request("GET", "/api"))["names"] == ["bob"]
        with pytest.raises(KubeError) as refused:
            await client.request("GET", "/refused")
        assert refused.value.status == 401
        assert (await client.request("GET", "/refused"))["names"] == ["alice"]


async def test_names_that_people_type_stay_names(authority: pki.Authority) -> None:
    async with connected(authority, asks=False) as client:
        for name in ("a b", "a/b?c=d#e", "ä", "a%20b"):
            answer = await client.get(PODS, name, "ns")
            assert answer["path"] == f"/api/v1/namespaces/ns/pods/{name}"


async def test_many_requests_share_few_connections(authority: pki.Authority) -> None:
    async with connected(authority, asks=False) as client:
        for _ in range(20):
            await asyncio.gather(*(client.request("GET", "/api") for _ in range(5)))
        (idle,) = client._http._idle.values()
        assert len(idle) == 5
        assert sum(connection.served for connection in idle) == 100
