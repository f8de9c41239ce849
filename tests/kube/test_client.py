"""KubeClient against a small server: paths, errors, pages, time limits and streams."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fairlead.kube import client as kube_client
from fairlead.kube.client import KubeClient, KubeError
from fairlead.kube.kubeconfig import KubeConfig
from fairlead.kube.resources import DEPLOYMENTS, LLMDEPLOYMENTS, NAMESPACES, PODS
from fairlead_testing.api_servers import answering

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler, **config: Any) -> AsyncIterator[KubeClient]:
    async with answering(handler) as server, KubeClient(KubeConfig(server=server, **config), timeout=5) as client:
        yield client


def always(text: str, code: int = 200) -> Handler:
    """Also of redirections: they have somewhere to go."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=text, status=code, headers={"location": "/login"})

    return answer


def status(code: int, reason: str, message: str) -> str:
    return json.dumps({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message})


def test_paths_are_kubernetes_paths() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("ns", "a", "status") == "/api/v1/namespaces/ns/pods/a/status"
    assert DEPLOYMENTS.path("ns") == "/apis/apps/v1/namespaces/ns/deployments"
    assert LLMDEPLOYMENTS.path("ns", "a", "scale").endswith("/v1alpha1/namespaces/ns/llmdeployments/a/scale")
    assert NAMESPACES.path(None, "ns") == "/api/v1/namespaces/ns"
    with pytest.raises(ValueError, match="needs a namespace"):
        PODS.path(None, "a")


async def test_objects_that_are_nested_without_end_are_read_like_the_others() -> None:
    depth = 9_900  # an API server takes ten thousand
    deep = '{"a":' * depth + "1" + "}" * depth
    event = f'{{"type":"ADDED","object":{{"spec":{deep}}}}}\n'

    async def answer(request: web.Request) -> web.Response:
        return web.Response(
            text=event if "watch" in request.query else f'{{"kind":"PodList","items":[{{"spec":{deep}}}]}}'
        )

    async with serving(answer) as client:
        assert len((await client.list(PODS, "ns"))["items"]) == 1
        assert [each["type"] async for each in client.watch(PODS, "ns", resource_version="1")] == ["ADDED"]


@pytest.mark.parametrize(
    ("text", "error", "may_pass"),
    [
        (status(404, "NotFound", 'pods "a" not found'), (404, "NotFound", 'pods "a" not found'), False),
        ("<html>bad gateway</html>", (502, "BadGateway", "<html>bad gateway</html>"), True),
        # As of a proxy that wants a person to log in: what it leads to is no Kubernetes API.
        ("302: Found", (302, "Found", "302: Found"), False),
    ],
    ids=["with a Status", "without", "to elsewhere"],
)
async def test_a_refusal_carries_status_reason_and_message(
    text: str, error: tuple[int, str, str], may_pass: bool
) -> None:
    async with serving(always(text, error[0])) as client:
        with pytest.raises(KubeError) as raised:
            await client.get(PODS, "a", "ns")
    assert (raised.value.status, raised.value.reason, raised.value.message) == error
    assert raised.value.may_pass is may_pass


async def test_a_refusal_that_quotes_a_whole_object_is_shortened() -> None:
    async with serving(always(status(422, "Invalid", "Invalid value: " + "x" * 1_000_000), 422)) as client:
        with pytest.raises(KubeError) as raised:
            await client.get(PODS, "a", "ns")
    assert raised.value.message.startswith("Invalid value: xxx") and len(str(raised.value)) < 5000


@pytest.mark.parametrize("answer", ["[]", "nonsense", '{"kind": "Other"}', None])
async def test_a_token_in_the_servers_path_is_in_no_error(answer: str | None) -> None:
    """As in the URL of local mode, for clients that send no header over plain HTTP."""

    async def respond(request: web.Request) -> web.StreamResponse:
        if answer is None:
            request.transport.abort()
        return web.Response(text=answer)

    async with serving(respond) as server:
        config = KubeConfig(server=f"{server.config.server}/token/s3cr3t", token="s3cr3t")
        async with KubeClient(config, timeout=5) as client:
            with pytest.raises(KubeError) as raised:
                await client.list(PODS)
    assert "/token/…" in str(raised.value) and "s3cr3t" not in str(raised.value)


async def test_a_proxy_is_asked_for_the_server() -> None:
    asked: list[str] = []

    async def pass_on(request: web.Request) -> web.Response:
        asked.append(request.url.host or "")
        return web.json_response({"kind": "PodList", "items": []})

    async with serving(pass_on) as proxy:
        config = KubeConfig(server="http://api.invalid:8000", proxy=proxy.config.server)
        async with KubeClient(config, timeout=5) as client:
            assert (await client.list(PODS))["items"] == []
    assert asked == ["api.invalid"]


async def test_watches_keep_no_request_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_client, "MAX_REQUESTS", 2)

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await streaming(b'{"type": "BOOKMARK", "object": {}}\n', forever=True)(request)
        return web.json_response({})

    async with serving(answer) as client, asyncio.timeout(10):
        watches = [client.watch(PODS, resource_version="1") for _ in range(5)]
        for watch in watches:
            assert (await anext(watch))["type"] == "BOOKMARK"
        assert await asyncio.gather(*(client.request("GET", "/api") for _ in range(5))) == [{}] * 5
        for watch in watches:
            await watch.aclose()  # type: ignore[attr-defined]


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    async with KubeClient(KubeConfig(server="http://me:secret@127.0.0.1:1"), timeout=5) as client:
        with pytest.raises(KubeError) as raised:
            await client.list(PODS)
    assert (raised.value.status, raised.value.reason) == (0, "Unreachable")
    assert raised.value.may_pass
    assert raised.value.message.startswith("GET http://127.0.0.1:1/api/v1/pods: ")


@pytest.mark.parametrize("answer", [{"object": "list", "data": []}, {"items": []}, {"kind": "PodList"}, [], "yes"])
async def test_a_server_of_another_kind_is_named_and_has_no_lists(answer: Any) -> None:
    async with serving(always(json.dumps(answer))) as client:
        with pytest.raises(KubeError, match="did not answer with a") as raised:
            await client.list(LLMDEPLOYMENTS)
    assert client.config.server in raised.value.message


@pytest.mark.parametrize(
    ("written", "words"),
    [(None, "No such file"), (b"", "is empty"), (b"one\ntwo\n", "has several lines"), (b"\xff", "not plain text")],
)
async def test_a_token_file_that_gives_no_token_is_named(tmp_path: Path, written: bytes | None, words: str) -> None:
    file = tmp_path / "token"
    if written is not None:
        file.write_bytes(written)
    async with serving(always("{}"), token_file=file) as client:
        for _ in range(2):
            with pytest.raises(KubeError, match=words) as raised:
                await client.request("GET", "/api")
            assert str(file) in raised.value.message


async def test_a_server_that_does_not_answer_is_unreachable() -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits that long")

    async with serving(hang) as client:
        with pytest.raises(KubeError, match="no answer in time"):
            await client.request("GET", "/api", timeout=0.05)


@pytest.mark.parametrize("text", ["not json", "[]", "null"])
async def test_an_answer_that_is_no_object_is_an_error(text: str) -> None:
    async with serving(always(text)) as client:
        with pytest.raises(KubeError):
            await client.request("GET", "/api")


async def test_a_list_is_read_page_by_page_and_its_items_get_their_kind() -> None:
    async def page(request: web.Request) -> web.Response:
        assert request.query["labelSelector"] == "a=b"
        is_last = request.query.get("continue") == "more"
        metadata = {"resourceVersion": "9"} | ({} if is_last else {"continue": "more"})
        items = [{"metadata": {"name": "b" if is_last else "a"}}]
        return web.json_response({"kind": "DeploymentList", "metadata": metadata, "items": items})

    async with serving(page) as client:
        document = await client.list(DEPLOYMENTS, "ns", label_selector="a=b")
    assert [item["metadata"]["name"] for item in document["items"]] == ["a", "b"]
    assert {(item["apiVersion"], item["kind"]) for item in document["items"]} == {("apps/v1", "Deployment")}
    assert document["metadata"]["resourceVersion"] == "9"


async def test_an_empty_list_may_be_null() -> None:
    empty = {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": None}
    async with serving(always(json.dumps(empty))) as client:
        assert (await client.list(PODS))["items"] == []


async def test_a_token_file_is_sent_as_bearer(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")

    async def echo(request: web.Request) -> web.Response:
        return web.json_response({"authorization": request.headers.get("Authorization")})

    async with serving(echo, token_file=tmp_path / "token") as client:
        assert await client.request("GET", "/") == {"authorization": "Bearer secret"}
    async with serving(echo, username="me", password="pw") as client:
        assert await client.request("GET", "/") == {"authorization": "Basic bWU6cHc="}
    async with serving(echo) as client:
        assert await client.request("GET", "/") == {"authorization": None}


async def test_server_side_apply_names_its_manager_and_force() -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.json_response(
            {
                "method": request.method,
                "path": request.path,
                "query": dict(request.query),
                "type": request.content_type,
                "body": json.loads(await request.text()),
            }
        )

    obj = {"metadata": {"name": "a", "namespace": "ns"}, "data": {}}
    async with serving(echo) as client:
        sent = await client.apply(DEPLOYMENTS, obj, "me", force=True)
    assert sent == {
        "method": "PATCH",
        "path": "/apis/apps/v1/namespaces/ns/deployments/a",
        "query": {"fieldManager": "me", "force": "true"},
        "type": "application/apply-patch+yaml",
        "body": obj,
    }


async def test_a_deletion_is_in_the_background_and_of_that_very_object() -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.json_response(json.loads(await request.text()))

    async with serving(echo) as client:
        options = await client.delete(PODS, "a", "ns", uid="u")
    assert options["propagationPolicy"] == "Background"
    assert options["preconditions"] == {"uid": "u"}


def streaming(*chunks: bytes, forever: bool = False) -> Handler:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if forever:
            await asyncio.sleep(60)
        return response

    return stream


async def test_watch_events_come_whole_whatever_the_chunks() -> None:
    big = json.dumps({"type": "ADDED", "object": {"data": "x" * 300_000}}).encode() + b"\n"
    small = b'{"type": "BOOKMARK", "object": {}}\n'
    async with serving(streaming(small[:10], small[10:] + big[:200_000], big[200_000:] + small + b"\n")) as client:
        kinds = [event["type"] async for event in client.watch(PODS, resource_version="1")]
    assert kinds == ["BOOKMARK", "ADDED", "BOOKMARK"]


async def test_an_expired_watch_raises_410() -> None:
    line = b'{"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "old"}}\n'
    async with serving(streaming(line)) as client:
        with pytest.raises(KubeError) as raised:
            async for _ in client.watch(PODS, resource_version="1"):
                pytest.fail("an error is no event")
    assert (raised.value.status, raised.value.reason) == (410, "Expired")


async def test_a_silent_watch_counts_as_broken() -> None:
    async with serving(streaming(forever=True)) as client:
        with pytest.raises(KubeError, match="no answer in time"):
            async for _ in client.watch(PODS, resource_version="1", silence_seconds=0.05):
                pytest.fail("nothing was sent")


@pytest.mark.parametrize("decoder", ["json.loads", "msgspec.json.decode", "msgspec.msgpack.decode"])
def test_what_is_nested_deeper_than_the_limit_is_refused_and_ends_no_process(decoder: str) -> None:
    """The operator keeps the limit for as long as it runs, whoever's bytes are decoded."""
    text = "b'\\x91' * n" if "msgpack" in decoder else "b'[' * n + b']' * n"
    source = (
        "import json, sys, msgspec; from fairlead.kube.client import RECURSION_LIMIT as limit\n"
        f"sys.setrecursionlimit(limit); n = 10 * limit\n"
        f"try: {decoder}({text})\n"
        "except RecursionError: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
